"""Train every attention in one small pyramid on the demo's worlds, and measure its cost: a Table 2 of one's own.

for example: python tools/compare_attention.py --attentions soft_pp inline softmax --out work_dirs/attentions/three
"""

import argparse
import functools
from pathlib import Path

from mmsoft.versions import require

require('mmengine', 'mmcv', 'mmdet', 'timm')

from benchmark.measure import Options
from studies import Help
from studies.attention import TITLES, claims_table, save, study, study_table

from mmsoft.engine.cli import run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    parser.add_argument('--attentions', nargs='+', default=list(TITLES), metavar='NAME', help=', '.join(TITLES))
    parser.add_argument('--seeds', type=int, default=3, help='trainings an attention and task')
    parser.add_argument('--rounds', type=int, default=5, help='of timing')
    parser.add_argument('--threads', type=int, default=2, help='of timing')
    parser.add_argument('--jobs', type=int, default=2, help='trainings at a time, each with one thread')
    parser.add_argument(
        '--work-dir',
        default='work_dirs/attentions',
        help='what is done there is not done again: take another one for another version',
    )
    parser.add_argument('--out', default='work_dirs/attentions/attentions', metavar='NAME', help='of .json, .md, plots')
    args = parser.parse_args()
    for option in ('seeds', 'rounds', 'threads', 'jobs'):
        if getattr(args, option) < 1:
            parser.error(f'--{option} must be 1 or more; got {getattr(args, option)}')
    for folder in (Path(args.work_dir), Path(args.out).parent):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f'{str(folder)!r} cannot be written: {error}')
    options = Options(rounds=args.rounds, threads=args.threads)
    say = functools.partial(print, flush=True)
    result = study(args.work_dir, range(args.seeds), args.attentions, options, say, args.jobs)
    print(f'{study_table(result)}\n\n{claims_table(result)}')
    print('written: ' + ', '.join(map(str, save(result, args.out))))


if __name__ == '__main__':
    run_tool(main)
