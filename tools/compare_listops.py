"""Train every attention on Long Range Arena's ListOps, and set top-1 beside the paper's Table 12; resumes by itself.

for example: python tools/compare_listops.py --attentions soft_pp softmax --steps 5000
"""

import argparse
from pathlib import Path

from mmsoft.versions import require

require('torch', 'torchvision')

from studies import Help
from studies.listops import ATTENTIONS, LENGTHS, save, table, train

from mmsoft.engine.cli import run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    parser.add_argument('--attentions', nargs='+', default=list(ATTENTIONS), choices=ATTENTIONS, metavar='NAME')
    parser.add_argument('--steps', type=int, default=5000, help='in all: a larger number goes on from what is done')
    parser.add_argument('--batch', type=int, default=32)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--train', type=int, default=96_000, help='lists to learn from')
    parser.add_argument('--test', type=int, default=2000, help='lists to be tested on')
    parser.add_argument('--lengths', nargs=2, type=int, default=LENGTHS, metavar=('LEAST', 'MOST'), help='of a list')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/listops'))
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs/listops/listops'),
        metavar='NAME',
        help='of tables; other rows of NAME.json stay',
    )
    args = parser.parse_args()
    for option in ('steps', 'batch', 'train', 'test'):
        if getattr(args, option) < 1:
            parser.error(f'--{option} must be 1 or more; got {getattr(args, option)}')
    if args.train < args.batch:
        parser.error(f'--train must be a batch ({args.batch}) or more; got {args.train}')
    if not 10 <= args.lengths[0] < args.lengths[1] - 10:
        parser.error(
            f'--lengths must be two numbers from 10, at least 11 apart; got {args.lengths[0]} {args.lengths[1]}'
        )
    args.work_dir.mkdir(parents=True, exist_ok=True)
    results = []
    for name in args.attentions:
        sizes, lengths = (args.train, args.test), tuple(args.lengths)
        results.append(train(name, args.work_dir, args.steps, args.seed, args.batch, sizes, lengths))
        print(table(results[-1:]).splitlines()[-1], flush=True)
        save(results, args.out)
    print(f'always the most common answer: {results[0]["most_common"]:.1f} %')


if __name__ == '__main__':
    run_tool(main)
