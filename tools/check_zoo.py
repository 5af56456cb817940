"""Build, train for one step and predict with every method of the installed mmdet and mmsegmentation; write a table.

for example: python tools/check_zoo.py --library mmdet --seconds 120

Pictures and weights are random, and nothing is downloaded. Each method runs in a process of its own; what was found
is kept in a JSON file beside the table as it comes, and a second call goes on with what is missing. Ends with 1 if a
method fails, which with --against works there.
"""

import argparse
import json
import sys
from pathlib import Path

from mmsoft.versions import require

require('mmengine', 'mmcv', 'mmdet', 'mmseg')

import torch
from zoo import configs, five_tools, method, report, runs

from mmsoft.engine.cli import run_tool


def main() -> None:
    args = parse()
    trial, page = (five_tools, five_tools.PAGE) if args.tools else (method, report.PAGE)
    args.out = args.out or Path('docs/zoo_tools.md' if args.tools else 'docs/zoo.md')
    kept = args.out.with_suffix('.json')
    found = report.read(kept, args.again)
    other = json.loads(args.against.read_text()) if args.against else None
    chosen = runs.choose(args.library, args.only)
    found['bases'] = sorted({*found['bases'], *(one.key for one in chosen if not one.config)})
    missing = [one for one in chosen if one.config and (args.only or one.key not in found['rows'])]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for one, row in runs.run(missing, args.seconds, args.threads, trial):
        tracebacks = row.pop('tracebacks')
        found['rows'][one.key] = row
        report.write(found, kept)
        done = ', '.join(step for step in trial.STEPS if row[step]) or 'nothing'
        print(
            f'{one.key}: {done}',
            *(report.reason(error) for error in row['errors'].values()),
            sep='; ',
            flush=True,
        )
        if args.tracebacks:
            print(*tracebacks.values(), sep='\n', file=sys.stderr, flush=True)
    args.out.write_text(report.markdown(found, other, configs.SIDE, configs.PROPOSALS, page))
    print(f'{report.totals(found)} See {args.out}')
    raise SystemExit(report.any_fails([one.key for one in chosen if one.config], found, other))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--library', nargs='+', default=runs.LIBRARIES, choices=runs.LIBRARIES, help='both by default')
    parser.add_argument(
        '--only',
        nargs='+',
        metavar='NAME',
        help='method folders (retinanet), or configs of the zoo (retinanet/retinanet_r18_fpn_1x_coco), run once more',
    )
    parser.add_argument(
        '--out', type=Path, metavar='FILE', help='the table (default docs/zoo.md, of --tools docs/zoo_tools.md)'
    )
    parser.add_argument(
        '--tools', action='store_true', help='send each through train, test, predict, browse and get_flops instead'
    )
    parser.add_argument('--again', action='store_true', help='forget what the JSON file beside it has')
    parser.add_argument(
        '--against', type=Path, metavar='JSON', help="another stack's file, to mark rows that differ from it"
    )
    parser.add_argument('--seconds', type=float, default=300, help='that a method may take (default 300)')
    parser.add_argument('--threads', type=int, default=torch.get_num_threads())
    parser.add_argument('--tracebacks', action='store_true', help='print those of the errors')
    return parser.parse_args()


if __name__ == '__main__':
    run_tool(main)
