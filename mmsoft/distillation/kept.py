"""Of what run the stages in a folder are: a run that goes on under other conditions is told so, a new one clears."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmsoft.engine.conditions import differences, listed
from mmsoft.files import json_plain
from mmsoft.weights.sources import NOTE
from mmsoft.weights.writing import write

from .teaching import STAGES

FILE = 'stages.json'
COPIES = ('copy.pth', 'teacher.pth')
MODEL = ('linear.pth', 'linear.py')
RESULTS = (*MODEL, 'report.md', 'report.json', 'report.png')
Conditions = Mapping[str, Any]


class Kept:
    """A folder of ``tools/linearize.py``, whose ``stages.json`` says what each stage was made of.

    Args:
        out: The folder; it need not be there.
        copy: What all stages depend on: the teacher, the config, which layers become linear, the seed.
    """

    def __init__(self, out: Path, copy: Conditions) -> None:
        self.out, self.copy, self.known = out, _plain(copy), _read(out / FILE)

    def start_of(self, stages: Sequence[str]) -> str:
        """The stage from whose weights the first of ``stages`` starts: the last one here before it, or the copy."""
        before = STAGES[: STAGES.index(stages[0])] if stages else ()
        return next((stage for stage in reversed(before) if self.has(stage)), 'copy')

    def has(self, stage: str) -> bool:
        """Whether it is finished, of this teacher with these options."""
        return self.known.get('copy') == self.copy and stage in self.known and (self.out / f'{stage}.pth').is_file()

    def check(self, wanted: Mapping[str, Conditions]) -> None:
        """Raise unless what is here is of this run."""
        self._check_known()
        now = dict(copy=self.copy, **{stage: _plain(values) for stage, values in wanted.items()})
        pairs = [(name, self.known[name], now[name]) for name in now if name in self.known]
        found = {}
        for name, then, values in pairs:
            prefix = '' if name == 'copy' else f'{name}: '
            found |= {prefix + key: pair for key, pair in differences(then, values).items()}
        if found:
            raise ValueError(
                f'{str(self.out)!r} holds another run: {listed(found, "there", "here")}. Resume with the values of '
                'that run, or leave out --resume to start anew'
            )

    def clear(self, stages: Sequence[str]) -> list[str]:
        """Make place for a new run of ``stages``: they go, and what was made of them; names of the weights that went.

        Of another teacher, or with other options, everything goes. What no ``stages.json`` tells of may be anybody's:
        it stays, and an error says so.
        """
        self._check_known()
        if not self.known:
            self.begin('copy', self.copy)
            return []
        first = STAGES.index(stages[0]) if stages else 0
        gone = STAGES[first:] if self.known.get('copy') == self.copy else STAGES
        weights = self._weights(gone)
        pictures = [self.out / f'{stage}.png' for stage in gone]
        for path in [*weights, *pictures, *(self.out / name for name in RESULTS)]:
            path.unlink(missing_ok=True)
        self.known = {stage: values for stage, values in self.known.items() if stage not in gone}
        self.begin('copy', self.copy)
        return [str(path.relative_to(self.out)) for path in weights if path.name != NOTE]

    def begin(self, stage: str, conditions: Conditions) -> None:
        self.known[stage] = _plain(conditions)
        write((json.dumps(self.known, indent=1) + '\n').encode(), self.out / FILE)

    def _check_known(self) -> None:
        own = [self.out / name for name in (*COPIES, *MODEL)]
        found = [] if self.known else [*self._weights(STAGES), *(path for path in own if path.is_file())]
        if found:
            raise ValueError(
                f'{str(self.out)!r} holds {str(found[0].relative_to(self.out))!r}, and no {FILE} that says of what run '
                'it is: name another --out, or remove it'
            )

    def _weights(self, stages: Sequence[str]) -> list[Path]:
        """What stages have written that another run could take for its own."""
        found = []
        for stage in stages:
            alone = [self.out / f'{stage}.pth', self.out / f'before_{stage}.pth', self.out / stage / NOTE]
            found += [path for path in alone if path.is_file()]
            found += sorted((self.out / stage).glob('iter_*.pth'))
        return found


def fingerprint(files: Sequence[str]) -> str:
    """Of pictures: how many, and a digest of their names and sizes."""
    digest = hashlib.sha256()
    for file in map(Path, files):
        digest.update(f'{file.name} {file.stat().st_size}\n'.encode('utf-8', 'surrogateescape'))
    return f'{len(files)} files {digest.hexdigest()[:12]}'


def _plain(values: Conditions) -> dict[str, Any]:
    """As they come back from a file."""
    return json.loads(json.dumps(json_plain(values)))


def _read(path: Path) -> dict[str, Any]:
    """Nothing if the file is not there, or not ours."""
    try:
        found = json.loads(path.read_text(encoding='utf-8'))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    ours = isinstance(found, dict) and all(isinstance(values, dict) for values in found.values())
    return found if ours else {}
