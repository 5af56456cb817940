"""Draw samples of a data set as the model sees them: after augmentation, with boxes, masks or label maps.

for example: python tools/browse_dataset.py configs/retinanet_soft_pp_small_1x_coco.py --data my_set/ --out-dir looked
"""

import argparse

from mmsoft.versions import require

require('mmengine', 'mmcv')

from mmengine.config import DictAction

from mmsoft.engine.browse import browse
from mmsoft.engine.cli import run_tool
from mmsoft.engine.config import CONFIG_HELP, load_config
from mmsoft.engine.own_data import DATA_HELP, check_options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help=CONFIG_HELP)
    parser.add_argument('--out-dir', required=True, metavar='FOLDER')
    parser.add_argument('--mode', choices=('train', 'val', 'test'), default='train')
    parser.add_argument('--count', type=int, default=20, help='of samples, spread evenly (default 20)')
    parser.add_argument('--data', metavar='FOLDER', help=DATA_HELP)
    parser.add_argument('--demo', action='store_true', help='of images drawn on the spot')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE', help='change values of the config'
    )
    args = parser.parse_args()
    if args.data:
        check_options(args.cfg_options or {}, args.demo)
    cfg = load_config(args.config, args.cfg_options)
    print(f'all samples on one sheet: {browse(cfg, args.out_dir, args.mode, args.count, args.demo, args.data)}')


if __name__ == '__main__':
    run_tool(main)
