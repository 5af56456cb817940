"""Draw the curves of training logs and print the last and best values.

for example: python tools/analyze_logs.py work_dirs/retinanet_soft_pp_small_1x_coco --out curves.png
"""

import argparse

from mmsoft.versions import require

require('mmcv')

from mmsoft.engine.cli import run_tool
from mmsoft.visualization import curve_table, plot_curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('work_dirs', nargs='+', metavar='WORK_DIR', help='or a vis_data/*.json file')
    parser.add_argument('--out', default='curves.png', metavar='FILE.png')
    parser.add_argument('--keys', nargs='+', help='by default losses, lr and all validation metrics')
    args = parser.parse_args()
    plot_curves(args.work_dirs, args.out, args.keys)
    print(curve_table(args.work_dirs, args.keys))
    print(f'curves: {args.out}')


if __name__ == '__main__':
    run_tool(main)
