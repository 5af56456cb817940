"""What was found, as JSON and as a page with a table, beside another stack's."""

import importlib
import json
import platform
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmsoft import mmcv_ops

STACK = ('torch', 'torchvision', 'mmengine', 'mmcv', 'mmdet', 'mmseg')
# A pattern in an error's words, and what it comes from.
REASONS = {
    'mmpretrain|MMPretrain|mmcls': 'needs mmpretrain',
    'fairscale': 'needs fairscale, transformers, and weights of BERT from the network',
    'huggingface.co': 'needs weights of BERT from the network',
    'albumentations': 'needs albumentations',
    'instaboostfast': 'needs instaboostfast',
    'transformers': 'needs transformers, and weights of BERT from the network',
    'install Detectron2': 'needs detectron2',
    'install sklearn': 'needs scikit-learn',
    'To use VPD model': 'needs the packages of Stable Diffusion, and its weights from the network',
    r'mat1 and mat2 shapes .*1044x1024': "mmdet's own limit: CrowdDet's refinement knows one class, persons",
    'upper bound and lower bound': "mmdet's own fault: it fails at boxes outside of the picture, as of random weights",
    r'joins \d+, read in different ways': '`--data` takes the place of one data set, and this joins several',
    "has 'teacher_config'": 'a model with a teacher needs its config file beside the checkpoint',
    r'of the config reads (.*), which no format': r'`--data` has no \1',
    'the config has none of train_dataloader|has no test_dataloader': 'its configs have no data sets',
    "takes proposals of another model|skipped: 'proposals'": 'takes proposals of another model',
    "new.*invalid data type 'str'": "mmdet's own fault: CLRNet's plain forward asks for a dict of pictures",
    "takes films, whose frames|namely 'tensor' mode|MOTChallengeDataset names": 'takes films alone',
    "'super' object has no attribute 'init_weights'": 'starts from weights of CLIP alone, from the network',
    'lap is not installed': 'needs lap',
    'no download from': 'needs weights from the network',
    'Please train `detector`': 'has no loss: its detector and ReID are trained apart',
    "'SSDHead' object has no attribute 'loss_cls'": "mmdet's own fault: SSDHead predicts by a loss that it has not",
    r"mmcv operator '(\w+)'": r'mmsoft.mmcv_ops has no \1',
    r'(\w+): implementation for device cpu not found': r'compiled mmcv has \1 for CUDA alone',
}
TOLERANCE = 1e-3
VERBS = dict(builds='build', trains='train', predicts='predict')
PAGE = """# Methods of mmdet and mmsegmentation that run

{totals}

Of every method folder of the installed zoos one config is built as it is, trained for one step of its own optimizer
(finite losses, a gradient, changed weights), and predicts (well-formed results): on a CPU, with random pictures of
{side} x {side} pixels, random weights, BN in place of SyncBN, {proposals} proposals at most and no score thresholds,
so that every operator has something to do. Pipelines, data sets and metrics are not run here, but
[by our tools](zoo_tools.md).

{stack}
{other}
{exceptions}

`python tools/check_zoo.py` writes this page.
"""


def new() -> dict[str, Any]:
    """A report without rows, of this stack."""
    stack = {name: importlib.import_module(name).__version__ for name in STACK} | dict(python=platform.python_version())
    return dict(stack=stack, provider=mmcv_ops.provider()[0], bases=[], rows={})


def read(path: Path, again: bool) -> dict[str, Any]:
    """The report to go on with, which has to be of this stack; or a new one."""
    report = new()
    if not path.is_file() or again:
        return report
    kept = json.loads(path.read_text())
    if any(kept[name] != report[name] for name in ('stack', 'provider')):
        raise SystemExit(f'error: {path} is of another stack: give another --out, or --again to write it anew')
    return kept


def write(report: dict[str, Any], path: Path) -> None:
    rows = dict(sorted(report['rows'].items()))
    path.write_text(json.dumps(report | dict(rows=rows), indent=1) + '\n')


def steps(row: dict[str, Any]) -> list[str]:
    """What was tried: whether it works is all that a row has of true and false."""
    return [name for name, value in row.items() if isinstance(value, bool)]


def works(row: dict[str, Any]) -> bool:
    return all(row[step] for step in steps(row))


def any_fails(keys: Iterable[str], report: dict[str, Any], other: dict[str, Any] | None) -> bool:
    """Whether any of these does not work here; what does not work on the other stack either is forgiven."""
    failing = [key for key in keys if not works(report['rows'][key])]
    return any(other is None or (key in other['rows'] and works(other['rows'][key])) for key in failing)


def totals(report: dict[str, Any]) -> str:
    """How many of how many rows of each library do what."""
    sentences = []
    for library in sorted({key.split('/')[0] for key in report['rows']}):
        rows = list(_rows(report, library).values())
        names = steps(rows[0])
        counts = ', '.join(f'{sum(row[step] for row in rows)} {VERBS.get(step, step)}' for step in names)
        all_of = {3: 'three', 5: 'five'}[len(names)]
        sentences.append(f'{library}: {sum(map(works, rows))} of {len(rows)} do all {all_of} ({counts}).')
    return ' '.join(sentences)


def reason(error: str) -> str:
    """Why a step failed, in a few words."""
    for pattern, words in REASONS.items():
        found = re.search(pattern, error)
        if found:
            return found.expand(words)
    return error.replace('|', '/')


def differences(row: dict[str, Any], other: dict[str, Any] | None) -> list[str]:
    """Where the other stack's row is not the same: a step that works in one alone, another loss or gradient."""
    if other is None:
        return ['was not run there']
    found = [f'{step} {_yes(row[step])}, there {_yes(other[step])}' for step in steps(row) if row[step] != other[step]]
    for name in ('loss', 'gradient'):
        here, there = row.get(name), other.get(name)
        if here is not None and there is not None and abs(here - there) > TOLERANCE * abs(there):
            found.append(f'{name} {here:.5g}, there {there:.5g}')
    return found


def markdown(report: dict[str, Any], other: dict[str, Any] | None, side: int, proposals: int, page: str = PAGE) -> str:
    """The whole page."""
    page = page.format(
        totals=totals(report),
        side=side,
        proposals=proposals,
        stack=_stack(report),
        exceptions=_exceptions(report),
        other=f'\nThe column "compared" tells where another stack differs. {_stack(other)} {totals(other)}\n'
        if other
        else '',
    )
    tables = [_table(report, other, library) for library in sorted({key.split('/')[0] for key in report['rows']})]
    bases = f'Folders of bases alone, without a model: {", ".join(report["bases"])}.' if report['bases'] else ''
    return '\n'.join([page, *tables, _operators(report), bases]).rstrip() + '\n'


def _rows(report: dict[str, Any], library: str) -> dict[str, dict[str, Any]]:
    """A library's rows by the method's name."""
    start = f'{library}/'
    return {key.removeprefix(start): row for key, row in report['rows'].items() if key.startswith(start)}


def _stack(report: dict[str, Any]) -> str:
    versions = ', '.join(f'{name} {version}' for name, version in report['stack'].items())
    owner = "mmcv's own, compiled" if report['provider'] == 'compiled' else "mmsoft's, from torch and torchvision"
    return f'Operators: {owner} (`mmsoft.mmcv_ops.provider()`: {report["provider"]}); {versions}.'


def _yes(value: bool) -> str:
    return 'yes' if value else 'no'


def _exceptions(report: dict[str, Any]) -> str:
    """What does not do all three, by its reason."""
    groups: dict[str, list[str]] = {}
    for key, row in report['rows'].items():
        if row['errors']:
            groups.setdefault(_remark(row), []).append(key)
    return '\n'.join(['Exceptions:\n', *(f'- {words}: {", ".join(keys)}' for words, keys in groups.items())])


def _remark(row: dict[str, Any]) -> str:
    return '; '.join(dict.fromkeys(reason(error) for error in row['errors'].values()))


def _table(report: dict[str, Any], other: dict[str, Any] | None, library: str) -> str:
    rows = _rows(report, library)
    names, called = steps(next(iter(rows.values()))), any(row['operators'] for row in rows.values())
    found = other and {name: differences(row, other['rows'].get(f'{library}/{name}')) for name, row in rows.items()}
    differ = bool(found) and any(found.values())
    columns = ['method', 'config', *names, *['mmcv operators called'] * called, 'remark', *['compared'] * differ]
    same = ['With the other stack, all of these do the same.', ''] if found and not differ else []
    lines = [f'## {library}', '', *same, _line(columns), _line(['---'] * len(columns))]
    for name, row in rows.items():
        config = '' if name == row['config'].removesuffix('.py') else Path(row['config']).stem
        cells = [name, config, *(_yes(row[step]) for step in names)]
        cells += [*[', '.join(row['operators'])] * called, _remark(row)]
        if found and differ:
            cells.append('; '.join(found[name]))
        lines.append(_line(cells))
    return '\n'.join([*lines, ''])


def _line(cells: list[str]) -> str:
    return f'| {" | ".join(cells)} |'


def _operators(report: dict[str, Any]) -> str:
    """Every operator with the number of rows that call it."""
    counts = Counter(name for row in report['rows'].values() for name in row['operators'])
    lines = [_line([f'`{name}`', str(count)]) for name, count in sorted(counts.items(), key=lambda item: -item[1])]
    if not lines:
        return ''
    return '\n'.join(['## Operators', '', _line(['operator', 'methods that call it']), '| --- | --- |', *lines, ''])
