"""Train small models, export them, and test the files beside the checkpoints; and the cost of backbones as files.

for example: python tools/compare_exports.py --costs --work-dir work_dirs/exports
"""

import argparse
import os
from pathlib import Path

from mmsoft.versions import require

require('mmengine', 'mmcv', 'timm', 'onnx', 'onnxscript', 'onnxruntime', 'openvino')

from studies.exports import MODELS, PRECISIONS, RUNTIMES, costs, costs_table, points_table, study

from mmsoft.engine.cli import run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--models', nargs='*', choices=MODELS, default=list(MODELS), metavar='CONFIG')
    parser.add_argument('--precisions', nargs='+', choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument('--runtimes', nargs='+', choices=RUNTIMES, default=RUNTIMES)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--costs', action='store_true', help='also time and memory of backbones in onnxruntime')
    parser.add_argument('--threads', type=int, default=2, help='of --costs (default 2)')
    parser.add_argument('--rounds', type=int, default=3, help='of --costs (default 3)')
    parser.add_argument(
        '--work-dir', type=Path, default=Path('work_dirs/exports'), help='what is finished there is not repeated'
    )
    args = parser.parse_args()
    world = Path(os.environ.setdefault('MMSOFT_DEMO_DATA', str(args.work_dir / 'miniature')))
    found = {name: study(name, args.work_dir, world, args.seed, args.precisions, args.runtimes) for name in args.models}
    if found:
        print(points_table(found))
    if args.costs:
        print(costs_table(costs(args.work_dir / 'backbones', args.threads, args.rounds), args.threads))


if __name__ == '__main__':
    run_tool(main)
