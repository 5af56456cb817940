"""Check a GPU and measure on it: one Markdown report, and JSON, to paste into an issue.

for example: python tools/check_gpu.py --out check_gpu

Every kernel is compared with float64, the tests that are marked cuda run, and forward passes and training steps are
timed at 224 x 224 and 800 x 1344 in fp32, bf16 and fp16, eager, compiled and as CUDA graphs, beside Swin-T and
ConvNeXt-T, with peak memory. Without a GPU, --rehearse goes the same way on the CPU at tiny sizes: kernels in Triton's
interpreter, then times of the portable road, which mean nothing.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mmsoft.engine.cli import run_tool

ROOT = Path(__file__).resolve().parent.parent
# Runs of the suite's part for GPUs; the kernels' own tests are slow only in the interpreter.
TESTS = (['-m', 'cuda and not slow'], ['-m', 'cuda and slow', 'tests/ops/test_triton_interpreted.py'])
REHEARSED_TESTS = (['-m', 'cuda and not slow', 'tests/ops/test_dispatch.py'],)
REHEARSED = ('soft_pp_tiny', 'swin_tiny')
LEAST = (8, 0)  # compute capability that Triton takes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rehearse', action='store_true', help='on the CPU, at tiny sizes')
    parser.add_argument('--out', type=Path, default=Path('check_gpu'), metavar='DIR', help='for report.md, report.json')
    parser.add_argument('--rounds', type=int, default=5, help='of a time, whose median is told')
    parser.add_argument('--all-compiled', action='store_true', help='compile in every precision and size: an hour')
    args = parser.parse_args()
    if args.rounds < 1:
        raise SystemExit(f'error: --rounds must be 1 or more; got {args.rounds}')
    if args.rehearse:
        os.environ['TRITON_INTERPRET'] = '1'  # before Triton is imported
    else:
        stop_without_gpu()
    args.out.mkdir(parents=True, exist_ok=True)
    report = check(args)
    print(markdown(report))
    if report['faults']:
        raise SystemExit('\n'.join(f'error: {fault}' for fault in report['faults']))


def stop_without_gpu() -> None:
    """Say what is wrong where nothing can run."""
    import torch

    if not torch.version.cuda and not torch.version.hip:
        raise SystemExit('error: torch is built without CUDA; install a build for your driver, see pytorch.org')
    if not torch.cuda.is_available():
        built = f'CUDA {torch.version.cuda}' if torch.version.cuda else f'ROCm {torch.version.hip}'
        raise SystemExit(
            f'error: torch is built for {built} and finds no GPU; see whether nvidia-smi lists it and whether its '
            'driver is new enough. Without a GPU, try --rehearse.'
        )
    try:
        torch.ones(8, device='cuda').sum().item()
    except Exception as error:
        raise SystemExit(f'error: the GPU cannot compute: {str(error).splitlines()[0]}') from None


def warnings_of(rehearse: bool) -> list[str]:
    """What keeps kernels from running, while all else can be measured."""
    import torch

    found = []
    if importlib.util.find_spec('triton') is None:
        found.append('Triton is not installed, so that no kernel of ours runs: pip install triton')
    if not rehearse and not torch.version.hip and (capability := torch.cuda.get_device_capability()) < LEAST:
        has, needs = ('.'.join(map(str, pair)) for pair in (capability, LEAST))
        found.append(f'the GPU has compute capability {has}, kernels need {needs}: the portable road is measured')
    return found


def check(args: argparse.Namespace) -> dict[str, Any]:
    """All steps; what is known so far is written after each."""
    import torch
    from benchmark import PEERS, Options
    from benchmark.on_gpu import MODELS, SIZES, cases, check_models, check_operators, measure, our_models
    from benchmark.report import make_report

    device, start = 'cpu' if args.rehearse else 'cuda', time.monotonic()
    models, sizes, side = (REHEARSED, [(64, 64)], 32) if args.rehearse else (MODELS, list(SIZES), 224)
    report: dict[str, Any] = dict(rehearsal=args.rehearse, faults=warnings_of(args.rehearse), checks=[])
    for fault in report['faults']:
        say(f'WRONG: {fault}')
    report['environment'] = run(['-m', 'mmsoft.env'])[1]
    say('kernels against float64')
    forbid_tf32()
    for checks in (check_operators(device, args.rehearse), check_models(device, our_models(models), side)):
        for one in checks:
            report['checks'].append({**one._asdict(), 'passed': one.passed})
            if not one.passed:
                report['faults'].append(f'{one.name}: {one.failed or "too far from float64"}')
                say(f'WRONG: {report["faults"][-1]}')
    write(report, args.out)
    say('tests marked cuda')
    os.environ.pop('TRITON_INTERPRET', None)  # far too slow for what follows: a rehearsal goes the portable road
    test(report, device)
    write(report, args.out)
    records = []
    for chosen in cases(device, sizes, models, args.all_compiled):
        say(f'measuring {chosen[0].model}, {chosen[0].size[0]} x {chosen[0].size[1]}: {len(chosen)} cases')
        records += measure(chosen, args.rounds)
        report['measured'] = make_report('check_gpu', records, PEERS, Options(args.rounds, torch.get_num_threads()))
        write(report, args.out)
    if not any(record.seconds for record in records):
        report['faults'].append('no case could be measured')
    report['minutes'] = (time.monotonic() - start) / 60
    write(report, args.out)
    return report


def forbid_tf32() -> None:
    """Where results are compared with float64, products of torch are to be exact as well."""
    import torch

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def test(report: dict[str, Any], device: str) -> None:
    """The suite's part for GPUs; of a rehearsal a part of it, on the CPU."""
    environment = dict(os.environ, MMSOFT_TEST_DEVICE=device)
    chosen = REHEARSED_TESTS if device == 'cpu' else TESTS
    runs = [run(['-m', 'pytest', '-p', 'no:cacheprovider', *words], environment) for words in chosen]
    lines = [line for _, text in runs for line in text.splitlines() if line.startswith(('FAILED', 'ERROR'))]
    summary = '; '.join((text.strip().splitlines() or ['nothing'])[-1] for _, text in runs)
    report['tests'] = dict(exit=max(code for code, _ in runs), summary=summary, failed=lines)
    if any(code for code, _ in runs):
        report['faults'].append(f'tests: {report["tests"]["summary"]}')
        say(f'WRONG: {report["faults"][-1]}')


def run(words: list[str], environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Python's exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, *words],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write(report: dict[str, Any], folder: Path) -> None:
    (folder / 'report.json').write_text(json.dumps(report, indent=1) + '\n')
    (folder / 'report.md').write_text(markdown(report) + '\n')


def markdown(report: dict[str, Any]) -> str:
    """What is wrong comes first."""
    from benchmark import markdown as tables

    lines = ['# Check of a GPU', '']
    if report['rehearsal']:
        lines += [
            "**A rehearsal on the CPU: kernels in Triton's interpreter, then times without them, which mean nothing.**",
            '',
        ]
    lines += [f'- WRONG: {fault}' for fault in report['faults']] or ['Nothing wrong was found.']
    lines += ['', '```', report['environment'].strip(), '```', '', '## Kernels against float64', '']
    lines += ['| what | output error | gradient error | at most | |', '|---|---|---|---|---|']
    for one in report['checks']:
        verdict = one['failed'] or ('passed' if one['passed'] else 'FAILED')
        errors = f'{one["output"]:.1e} | {one["gradient"]:.1e} | {one["tolerance"]:.0e}'
        lines.append(f'| {one["name"]} | {errors} | {verdict} |')
    if 'tests' in report:
        lines += ['', '## Tests', '', report['tests']['summary'], *(f'- {line}' for line in report['tests']['failed'])]
    if 'measured' in report:
        lines += ['', '## Time and memory', '', tables(report['measured'])]
    if 'minutes' in report:
        lines += ['', f'{report["minutes"]:.0f} minutes.']
    return '\n'.join(lines)


if __name__ == '__main__':
    run_tool(main)
