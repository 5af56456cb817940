"""Two suites without a GPU: launches and bytes with times predicted for GPUs; and the prediction against this CPU."""

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from mmsoft.ops.dispatch import PORTABLE, kernels, no_triton

from .cases import OURS, Case
from .counter import KERNELS, Row, count, step_of
from .prediction import FORMULA, GPUS, Machine, predicted, seconds, this_cpu
from .report import machine, write_data

MODELS = (
    'soft_pp_tiny',
    'soft_pp_small',
    'inline_pvt_small',
    'inline_swin_tiny',
    'inline_cswin_tiny',
    'inline_deit_tiny',
    'mila_tiny',
    'ravlt_tiny',
    'swin_tiny',
    'convnext_tiny',
    'pvtv2_b2',
)
SIZE = (800, 1344)
MOST = 6  # operators that a row names
CHECKED = ('soft_pp_tiny', 'soft_pp_small', 'inline_swin_tiny', 'swin_tiny', 'convnext_tiny', 'pvtv2_b2')
CHECK_SIZE = (448, 448)


def launches(say: Callable[[str], None], models: tuple[str, ...] = MODELS) -> dict[str, Any]:
    """The report: a row a model, road and task."""
    if reason := no_triton(torch.empty(0, device='meta')):
        raise RuntimeError(f'launches with kernels cannot be counted: {reason}')
    rows = []
    for model in models:
        say(f'counting {model}')
        for road in (KERNELS, PORTABLE) if model in OURS else (PORTABLE,):
            rows += [count(Case(model, SIZE, task), road) for task in ('forward', 'train')]
    about = {name: value for name, value in machine(1).items() if name in ('mmsoft', 'torch', 'timm', 'mmdet')}
    return dict(name='launches', size=SIZE, machine=about, formula=FORMULA, cases=list(map(_as_json, rows)))


def _as_json(row: Row) -> dict[str, Any]:
    times = {f'predicted_{gpu}_{how}': s for gpu in GPUS for how, s in predicted(row.asked, GPUS[gpu]).items()}
    operators = dict(calls=dict(row.calls.most_common()), bytes=dict(row.bytes.most_common()))
    return dict(model=row.model, road=row.road, task=row.task, **row.asked._asdict(), **times, **operators)


def launches_markdown(report: dict[str, Any]) -> str:
    """Counts side by side, then predictions, then the operators that are most."""
    pairs: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in report['cases']:
        pairs.setdefault((row['model'], row['road']), {})[row['task']] = row
    height, width = report['size']
    lines = [f'{height} x {width}, batch 1, fp32; {", ".join(f"{k} {v}" for k, v in report["machine"].items())}', '']
    lines += ['| model | road | forward: launches, GB, G multiply-adds | forward + backward |', '|---|---|---|---|']
    for (model, road), tasks in pairs.items():
        lines.append(f'| {model} | {road} | {_counts(tasks["forward"])} | {_counts(tasks["train"])} |')
    lines += ['', f'Predicted, not measured: {report["formula"]}', '']
    lines += [
        "| makers' peak figures | memory, GB/s | fp32, TFLOPS | bf16 tensor cores, dense, TFLOPS |",
        '|---|---|---|---|',
    ]
    for name, gpu in GPUS.items():
        lines.append(f'| {name} | {gpu.bandwidth / 1e9:.0f} | {gpu.peak / 1e12:.1f} | {gpu.half_peak / 1e12:.0f} |')
    lines += ['', f'| predicted ms: fp32 / bf16 / bf16 as CUDA graph | road | task | {" | ".join(GPUS)} |']
    lines += [f'|---|---|---|{"---|" * len(GPUS)}']
    for row in report['cases']:
        times = [[1e3 * row[f'predicted_{gpu}_{how}'] for how in ('fp32', 'bf16', 'graph_bf16')] for gpu in GPUS]
        cells = ' | '.join(' / '.join(f'{time:.1f}' for time in some) for some in times)
        lines.append(f'| {row["model"]} | {row["road"]} | {row["task"]} | {cells} |')
    lines += ['', '| model | road | task | most launches | most GB |', '|---|---|---|---|---|']
    for row in report['cases']:
        calls = ', '.join(f'{name} {number}' for name, number in list(row['calls'].items())[:MOST])
        heavy = ', '.join(f'{name} {number / 1e9:.1f}' for name, number in list(row['bytes'].items())[:MOST])
        lines.append(f'| {row["model"]} | {row["road"]} | {row["task"]} | {calls} | {heavy} |')
    return '\n'.join(lines)


def _counts(row: dict[str, Any]) -> str:
    return f'{row["launches"]}, {row["bytes_moved"] / 1e9:.1f}, {row["macs"] / 1e9:.0f}'


def check_formula(
    say: Callable[[str], None],
    rounds: int,
    models: tuple[str, ...] = CHECKED,
    size: tuple[int, int] = CHECK_SIZE,
) -> dict[str, Any]:
    """Forward passes on one core of this CPU by the portable road: predicted as for GPUs, and measured.

    What was measured of the machine, in the same rounds, is all that a prediction knows; nothing is fitted to models.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [_checked(Case(model, size), rounds) for model in models]
    finally:
        torch.set_num_threads(before)
    for row in rows:
        say(f'{row["model"]}: predicted {row["predicted"]:.3f} s, measured {row["measured"]:.3f} s')
    errors = [abs(row['error']) for row in rows]
    return dict(
        name='prediction', formula=FORMULA, cases=rows, median_error=statistics.median(errors), worst=max(errors)
    )


def _checked(case: Case, rounds: int) -> dict[str, Any]:
    measure, step, asked = this_cpu(), step_of(case, 'cpu'), count(case, PORTABLE).asked
    machines, times = [], []
    with kernels(PORTABLE):
        for _ in range(rounds + 1):
            machines.append(measure())
            times.append(seconds(step))
    on = Machine(*map(statistics.median, zip(*machines[1:], strict=True)))  # the first round warmed up
    guess, measured = predicted(asked, on)['fp32'], statistics.median(times[1:])
    found = dict(predicted=guess, measured=measured, error=guess / measured - 1)
    return dict(model=case.model, size=case.size) | asked._asdict() | on._asdict() | found


def check_markdown(report: dict[str, Any]) -> str:
    """A row a model, and how far off predictions are."""
    height, width = report['cases'][0]['size']
    lines = [
        f'Forward, {height} x {width}, batch 1, fp32, portable road, one core. {report["formula"]}',
        "Here bandwidth, peak and launch cost are measured in the same rounds; times are medians of the core's.",
        '',
        '| model | GB | G multiply-adds | GB/s | GFLOP/s | predicted | measured | error |',
        '|---|---|---|---|---|---|---|---|',
    ]
    for row in report['cases']:
        lines.append(
            f'| {row["model"]} | {row["bytes_moved"] / 1e9:.2f} | {row["macs"] / 1e9:.1f} '
            f'| {row["bandwidth"] / 1e9:.1f} | {row["peak"] / 1e9:.0f} '
            f'| {1e3 * row["predicted"]:.0f} ms | {1e3 * row["measured"]:.0f} ms | {row["error"]:+.0%} |'
        )
    return '\n'.join([*lines, '', f'Error: median {report["median_error"]:.0%}, worst {report["worst"]:.0%}.'])


class Counted(NamedTuple):
    """A suite that is not measured case by case: makes its report, which ``text`` shows; ``read`` are its options."""

    make: Callable[[Any, Callable[[str], None]], dict[str, Any]]
    text: Callable[[dict[str, Any]], str]
    read: tuple[str, ...]

    def run(self, args: Any, say: Callable[[str], None]) -> str:
        report = self.make(args, say)
        if args.out:
            write_data(report | dict(name=args.name or report['name']), args.out)
        return self.text(report)


COUNTED = dict(
    launches=Counted(lambda args, say: launches(say), launches_markdown, ('out', 'name')),
    prediction=Counted(lambda args, say: check_formula(say, args.rounds), check_markdown, ('out', 'name', 'rounds')),
)
