"""Train our classifiers and their peers on your pictures by one recipe: learning curves, accuracy, time to it.

for example: python tools/compare_learning.py data/flowers --seeds 0 1 --out work_dirs/learning/flowers
"""

import argparse
from pathlib import Path

from mmsoft.versions import require

require('mmengine', 'mmcv', 'timm')

from studies.learning import Recipe, layers_table, plot, rules_table, study, study_table
from studies.peers import MODELS

from mmsoft.engine.cli import run_tool

QUARTERS = ('soft_pp_quarter', 'inline_pvt_quarter', 'pvt_quarter', 'pvt_v2_b0', 'resnet18_half', 'mobilenetv3')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=f'models: {", ".join(MODELS)}'
    )
    parser.add_argument('data', help='a folder with train/<class>/ and val/<class>/')
    parser.add_argument('--models', nargs='+', default=QUARTERS, metavar='NAME')
    parser.add_argument('--seeds', type=int, nargs='+', default=(0, 1, 2))
    parser.add_argument('--size', type=int, default=Recipe.size, help='of the pictures in training')
    parser.add_argument('--test-sizes', type=int, nargs='*', default=(), help='test at these sizes as well')
    parser.add_argument('--epochs', type=int, default=Recipe.epochs)
    parser.add_argument('--batch', type=int, default=Recipe.batch)
    parser.add_argument('--lr', type=float, default=Recipe.lr)
    parser.add_argument('--goal', type=float, default=40, help='the top-1 whose time is told, in per cent')
    parser.add_argument('--work-dir', default='work_dirs/learning', help='runs there are resumed, not repeated')
    parser.add_argument(
        '--out', type=Path, metavar='FILE', help='FILE.json, whose runs are not repeated, FILE.md, plots'
    )
    args = parser.parse_args()
    recipe = Recipe(args.size, args.epochs, args.batch, args.lr)
    kept = args.out.with_suffix('.json') if args.out else None
    found = study(args.data, args.models, args.seeds, recipe, args.work_dir, args.test_sizes, kept=kept)
    table = '\n\n'.join([study_table(found, args.goal), layers_table(found), rules_table(found)])
    print(table)
    if args.out:
        args.out.with_suffix('.md').write_text(table + '\n')
        plot(found, args.out)


if __name__ == '__main__':
    run_tool(main)
