"""What the measurements say: medians and spread, ratios, exponents; as a dict for JSON, a CSV and Markdown."""

import csv
import importlib
import json
import math
import os
import platform
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import mmsoft

from .cases import GEMM, GEMMS, NUM_LANDMARKS, Case
from .measure import NO_MEMORY, Options, Record

LIBRARIES = ('torch', 'torchvision', 'timm', 'mmengine', 'mmcv', 'mmdet', 'mmseg')
# Below these, costs that do not grow with the image weigh in; left out of fits where three sizes remain.
FIT_FROM = 448 * 448 // 16  # tokens
SPREAD = ('seconds_samples', 'peak_mib_samples', 'calls', 'bytes')  # JSON only


def make_report(name: str, records: Sequence[Record], peers: Sequence[str], options: Options) -> dict[str, Any]:
    """Everything that tables, files and plots are made of."""
    weighed = any(record.peak_mib for record in records)
    return dict(
        name=name,
        machine=machine(options.threads),
        options=options._asdict(),
        remarks=[NO_MEMORY] if options.memory and not weighed and any(r.seconds for r in records) else [],
        cases=[_row(record, records) for record in records],
        ratios=list(_ratios(records, peers)),
        fits=list(_fits(records)),
    )


def _row(record: Record, records: Sequence[Record]) -> dict[str, Any]:
    case, seconds, peaks = record.case, record.seconds, record.peak_mib
    height, width = case.size
    return dict(
        group=record.group,
        label=case.label,
        **case._replace(size=None)._asdict() | dict(size=f'{height}x{width}'),
        tokens=case.tokens,
        parameters=record.parameters,
        macs=record.macs,
        seconds=_median(seconds),
        seconds_min=min(seconds, default=None),
        seconds_max=max(seconds, default=None),
        seconds_samples=seconds,
        peak_mib=_median(peaks),
        peak_mib_samples=peaks,
        gemm_share=_gemm_share(record, records),
        failure=record.failure,
    )


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _rate(record: Record) -> float:
    """Multiply-adds a second."""
    return record.macs / statistics.median(record.seconds)


def _gemm_share(record: Record, records: Sequence[Record]) -> float | None:
    """The rate over that of the matrix product of the same group and precision."""
    if record.case.model == GEMM or not record.macs or not record.seconds:
        return None
    for other in records:
        if other.case.model == GEMM and other.group == record.group and other.case.precision == record.case.precision:
            return _rate(record) / _rate(other) if other.seconds and other.macs else None
    return None


def _ratios(records: Sequence[Record], peers: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Each case over those in its group that it is to be compared with."""
    for record in records:
        group = {other.case: other for other in reversed(records) if other.group == record.group}
        for case in dict.fromkeys(_references(record.case, peers)):
            other = group.get(case)
            if other is None or not record.seconds or not other.seconds:
                continue
            rounds = sorted(a / b for a, b in zip(record.seconds, other.seconds, strict=False))
            weighed = record.peak_mib and other.peak_mib
            yield dict(
                group=record.group,
                label=record.case.label,
                to=case.label,
                seconds=_median(record.seconds) / _median(other.seconds),
                seconds_range=[rounds[0], rounds[-1]],
                peak_mib=_median(record.peak_mib) / _median(other.peak_mib) if weighed else None,
            )


def _references(case: Case, peers: Sequence[str]) -> Iterator[Case]:
    """The peers run alike, but without options of ours; the same model without what sets it apart."""
    if case.model in GEMMS:
        return
    prefix = f'{case.family}:' if case.family else ''
    plain = case._replace(with_cp=False, num_landmarks=NUM_LANDMARKS)
    for peer in peers:
        if peer != case.part and case.part not in peers:
            yield plain._replace(model=prefix + peer)
    usual = dict(compiled=False, with_cp=False, num_landmarks=NUM_LANDMARKS)
    for option, value in usual.items():
        if getattr(case, option) != value:
            yield case._replace(**{option: value})


def _fits(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """Exponents against tokens of whatever was measured at three sizes or more."""
    series = {}
    for record in records:
        if record.case.model not in GEMMS and record.seconds:
            key = record.case._replace(size=(0, 0))
            series.setdefault(key, {}).setdefault(record.case.tokens, record)
    for case, by_tokens in series.items():
        tokens = sorted(by_tokens)
        large = [count for count in tokens if count >= FIT_FROM]
        tokens = large if len(large) > 2 and case.family != 'attention' else tokens
        if len(tokens) < 3:
            continue
        times = [statistics.median(by_tokens[count].seconds) for count in tokens]
        peaks = [_median(by_tokens[count].peak_mib) for count in tokens]
        weighed = all(peak and peak > 0 for peak in peaks)
        yield dict(
            label=case.label,
            task=case.task,
            batch=case.batch,
            tokens=tokens,
            seconds=exponent(tokens, times),
            peak_mib=exponent(tokens, peaks) if weighed else None,
        )


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """b of the power law y = a * x ** b that fits best on log scales."""
    return statistics.linear_regression([math.log(v) for v in x], [math.log(v) for v in y]).slope


def machine(threads: int) -> dict[str, Any]:
    """What the numbers were measured on."""
    info = Path('/proc/cpuinfo')
    names = re.findall(r'model name\s*:\s*(.+)', info.read_text()) if info.is_file() else []
    return dict(
        cpu=names[0] if names else platform.processor(),
        cores=os.cpu_count(),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        threads=threads,
        python=platform.python_version(),
        mmsoft=mmsoft.__version__,
        **{name: _version(name) for name in LIBRARIES},
    )


def _version(library: str) -> str | None:
    try:
        return importlib.import_module(library).__version__
    except Exception:  # broken in whatever way: the cases that need it will say
        return None


def write_data(report: dict[str, Any], folder: Path) -> None:
    """``NAME.json`` with everything, ``NAME.csv`` with a row a case."""
    folder.mkdir(parents=True, exist_ok=True)
    name = report['name']
    (folder / f'{name}.json').write_text(json.dumps(report, indent=1) + '\n')
    columns = [key for key in report['cases'][0] if key not in SPREAD] if report['cases'] else []
    with (folder / f'{name}.csv').open('w', newline='') as file:
        writer = csv.DictWriter(file, columns, extrasaction='ignore')
        writer.writeheader()
        writer.writerows(report['cases'])


def markdown(report: dict[str, Any]) -> str:
    """Tables of the cases by group, the ratios and the exponents, and what failed."""
    about = ', '.join(f'{key} {value}' for key, value in report['machine'].items() if value is not None)
    lines = [about, *report['remarks']]
    for group in dict.fromkeys(row['group'] for row in report['cases']):
        rows = [row for row in report['cases'] if row['group'] == group]
        lines += ['', f'| {group} | time: median (range) | peak memory added | multiply-adds | share of GEMM peak |']
        lines += ['|---|---|---|---|---|', *map(_case_line, rows)]
    if report['ratios']:
        lines += ['', '| ratio | to | group | time (rounds) | peak memory |', '|---|---|---|---|---|']
        for row in report['ratios']:
            low, high = row['seconds_range']
            lines.append(
                f'| {row["label"]} | {row["to"]} | {row["group"]} '
                f'| {row["seconds"]:.2f} ({low:.2f} to {high:.2f}) | {_number(row["peak_mib"], ".2f")} |'
            )
    if report['fits']:
        lines += ['', '| exponent against tokens | task | tokens | time | peak memory |', '|---|---|---|---|---|']
        for row in report['fits']:
            counts = f'{len(row["tokens"])} sizes, {row["tokens"][0]} to {row["tokens"][-1]}'
            exponents = f'{row["seconds"]:.2f} | {_number(row["peak_mib"], ".2f")}'
            lines.append(f'| {row["label"]} | {row["task"]} | {counts} | {exponents} |')
    return '\n'.join(lines)


def _case_line(row: dict[str, Any]) -> str:
    what = row['label'] + (f', {row["size"]}' if row['model'] in GEMMS else '')
    if row['failure'] and row['seconds'] is None:
        return f'| {what} | {row["failure"].replace("|", "/")} | | | |'
    time = f'{_seconds(row["seconds"])} ({_seconds(row["seconds_min"])} to {_seconds(row["seconds_max"])})'
    if row['failure']:
        time += f'; then {row["failure"].replace("|", "/")}'
    macs = '-' if row['macs'] is None else f'{row["macs"] / 1e9:.2f} G'
    peak = '-' if row['model'] in GEMMS else _number(row['peak_mib'], '.0f', ' MiB')
    return f'| {what} | {time} | {peak} | {macs} | {_number(row["gemm_share"], ".0%")} |'


def _seconds(value: float) -> str:
    return f'{value:.3g} s' if value >= 1 else f'{1000 * value:.3g} ms'


def _number(value: float | None, form: str, unit: str = '') -> str:
    return '-' if value is None else f'{value:{form}}{unit}'
