"""Measure time and peak memory of backbones, whole models or attentions, side by side in one run.

for example: python tools/benchmark.py --models soft_pp_tiny swin_tiny --sizes 224x224 --rounds 5 --threads 2
"""

import argparse
import signal
import sys
from pathlib import Path

import torch
from benchmark import (
    COUNTED,
    GEMMS,
    PEERS,
    SUITES,
    Options,
    markdown,
    run_benchmark,
    selection,
    sizes_of,
    with_gemm,
)

from mmsoft.engine.cli import add_import, run_tool

MEMORY_SAMPLES = 1
# What goes with --models, and what it is by default.
OWN_CHOICE = dict(
    sizes=['800x1344'],
    tasks=['forward'],
    precisions=['fp32'],
    batch=1,
    compiled=False,
    with_cp=False,
    published_landmarks=False,
)


def main() -> None:
    args = parse()
    if args.suite in COUNTED:
        print(COUNTED[args.suite].run(args, lambda text: print(text, file=sys.stderr, flush=True)))
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # either way what was measured is written
    if args.models:
        choice = {key: getattr(args, key, default) for key, default in OWN_CHOICE.items()}
        choice['sizes'] = sizes_of(choice['sizes'])
        name, groups = 'selection', selection(args.models, **choice)
    else:
        name = args.suite or 'figures'
        groups = SUITES[name]()
    known = dict.fromkeys(case.part for group in groups for case in group.cases)
    for peer in args.peer or ():
        if peer not in known:
            raise SystemExit(f'error: --peer {peer} is not measured; choose from {", ".join(known)}')
    samples = args.memory_samples or MEMORY_SAMPLES
    report = run_benchmark(
        args.name or name,
        [with_gemm(group, args.gemm, args.device) for group in groups],
        Options(args.rounds, args.threads, not args.no_memory, samples, tuple(args.imports or ())),
        args.peer or PEERS,
        lambda text: print(text, file=sys.stderr, flush=True),
        args.out,
    )
    print(markdown(report))
    if all(row['seconds'] is None for row in report['cases'] if row['model'] not in GEMMS):
        raise SystemExit('error: no case could be measured')


def parse() -> argparse.Namespace:
    """The options, which do not contradict each other; a choice of one's own that was not made is not in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--suite', choices=[*SUITES, *COUNTED], help='a named set of cases; by default figures, as in the README'
    )
    parser.add_argument(
        '--peer', nargs='+', metavar='NAME', help='backbones or attentions that others are compared with'
    )
    add_import(parser)
    parser.add_argument('--device', default='cpu', choices=('cpu', 'cuda'))
    parser.add_argument('--rounds', type=int, default=9, help='at most; slow groups of a suite have fewer')
    parser.add_argument('--threads', type=int, default=torch.get_num_threads())
    parser.add_argument('--no-memory', action='store_true')
    parser.add_argument(
        '--memory-samples',
        type=int,
        metavar='N',
        help=f'processes whose median is the peak memory, by default {MEMORY_SAMPLES}',
    )
    parser.add_argument(
        '--gemm',
        type=int,
        default=4096,
        metavar='N',
        help="side of matrices whose product is the machine's peak; or 0",
    )
    parser.add_argument('--out', type=Path, metavar='DIR', help='write NAME.json, NAME.csv and plots there')
    parser.add_argument('--name', help="of the files; by default the suite's, or selection")
    _add_own_choice(parser)
    args = parser.parse_args()
    given = [key for key in OWN_CHOICE if hasattr(args, key)]
    if args.models and args.suite:
        raise SystemExit('error: --suite fixes its cases: leave out --models, or --suite')
    if given and not args.models:
        raise SystemExit(f'error: a suite fixes its {", ".join(given)}: give --models to choose your own')
    if args.suite in COUNTED:
        _refuse_unread(parser, args)
    if args.no_memory and args.memory_samples is not None:
        raise SystemExit('error: --memory-samples has nothing to do with --no-memory: leave one out')
    for option in ('rounds', 'threads', 'memory_samples'):
        if getattr(args, option) is not None and getattr(args, option) < 1:
            raise SystemExit(f'error: --{option.replace("_", "-")} must be 1 or more; got {getattr(args, option)}')
    return args


def _refuse_unread(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Suites that count take few options, and say so of the others."""
    read = COUNTED[args.suite].read
    for option in vars(args).keys() - {'suite', *read}:
        if getattr(args, option) != parser.get_default(option):
            allowed = ', '.join(f'--{name}' for name in read)
            raise SystemExit(f'error: --suite {args.suite} does not read {option!r}; its options are {allowed}')


def _add_own_choice(parser: argparse.ArgumentParser) -> None:
    own = parser.add_argument_group('cases of your own instead of a suite')
    options = dict(default=argparse.SUPPRESS)
    own.add_argument(
        '--models',
        nargs='+',
        metavar='NAME',
        help='soft_pp_small, swin_tiny, retinanet:resnet50, attention:softmax, ...; a wrong name lists all',
    )
    own.add_argument(
        '--sizes',
        nargs='+',
        help='a side or HEIGHTxWIDTH (800x1344); of an attention, its grid of tokens',
        **options,
    )
    own.add_argument('--tasks', nargs='+', choices=('forward', 'train'), **options)
    own.add_argument('--precisions', nargs='+', choices=('fp32', 'bf16', 'fp16'), help='half by autocast', **options)
    own.add_argument('--batch', type=int, **options)
    own.add_argument(
        '--compile', dest='compiled', action='store_true', help='every case with torch.compile as well', **options
    )
    own.add_argument('--with-cp', action='store_true', help='our training steps with checkpoints as well', **options)
    own.add_argument(
        '--published-landmarks',
        action='store_true',
        help="our backbones with the authors' rule as well, by which landmarks grow with the image",
        **options,
    )


if __name__ == '__main__':
    run_tool(main)
