"""Print parameters and multiply-adds of a model by part; neither data nor weights are needed.

for example: python tools/get_flops.py configs/retinanet_soft_pp_small_1x_coco.py --shape 800 1333
"""

import argparse

from mmsoft.versions import require

require('mmengine', 'mmcv')

from mmengine.config import DictAction

from mmsoft.engine.cli import run_tool
from mmsoft.engine.complexity import count_parts, parts_table
from mmsoft.engine.config import CONFIG_HELP, load_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help=CONFIG_HELP)
    parser.add_argument(
        '--shape', type=int, nargs=2, metavar=('H', 'W'), help="by default the test pipeline's; of ADE20K 512 x 512"
    )
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE', help='change values of the config'
    )
    args = parser.parse_args()
    print(parts_table(*count_parts(load_config(args.config, args.cfg_options), args.shape)))


if __name__ == '__main__':
    run_tool(main)
