"""Results that are whole at every moment: lines while they come, one list at the end."""

import json
import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from mmengine.evaluator import DumpResults
from mmengine.logging import print_log

from mmsoft.weights.writing import whole_file


class Results:
    """``results.json``, the list of all entries. Until it is written, ``results.jsonl`` has a list a line and picture.

    A run that is killed leaves the lines; ``jq -s add`` makes the list of them.
    """

    def __init__(self, folder: Path) -> None:
        self.whole, self.lines = folder / 'results.json', folder / 'results.jsonl'
        self.whole.unlink(missing_ok=True)  # of an earlier run
        self.file = self.lines.open('wb')

    def add(self, entries: Sequence[dict[str, Any]]) -> None:
        try:
            line = json.dumps(entries, allow_nan=False)
        except ValueError as error:
            raise ValueError('the model gives numbers that are not finite: are its weights sound?') from error
        with self._lines_stay():
            self.file.write(line.encode() + b'\n')
            self.file.flush()

    def finish(self) -> None:
        with self._lines_stay():
            self.file.close()
            write_whole(self.whole, self._list())
            self.lines.unlink()

    @contextmanager
    def _lines_stay(self) -> Iterator[None]:
        """An error tells where the results are."""
        try:
            yield
        except OSError as error:
            found = f'{error.strerror}; the results so far are, a line a picture, in'
            raise OSError(error.errno, found, str(self.lines)) from error

    def _list(self) -> Iterator[bytes]:
        """The lines as one list; one that a full disk cut off is left out."""
        yield b'['
        comma = b''
        with self.lines.open('rb') as lines:
            for line in lines:
                if line != b'[]\n' and line.endswith(b']\n'):
                    yield comma + line[1:-2]
                    comma = b', '
        yield b']'


def dump_whole(metric: DumpResults) -> None:
    """Let it write its pickle whole or not at all. ``lost`` is why not: the metrics beside it are not lost with it."""
    metric.lost, metric.compute_metrics = None, partial(_dump, metric)


def _dump(metric: DumpResults, results: list) -> dict:
    try:
        write_whole(Path(metric.out_file_path), [pickle.dumps(results)])
    except OSError as error:
        metric.lost = error
    else:
        print_log(f'predictions saved in {metric.out_file_path}', logger='current')
    return {}


def write_whole(path: Path, parts: Iterable[bytes]) -> None:
    """Write beside the target, wait for the disk, and rename."""
    with whole_file(path) as partial:
        with partial.open('wb') as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
