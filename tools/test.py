"""Test a checkpoint: metrics with a table by class, saved as JSON; on request all predictions and drawings.

for example: python tools/test.py configs/retinanet_soft_pp_small_1x_coco.py epoch_12.pth
"""

import argparse
from pathlib import Path

from mmsoft.versions import require

require('mmengine', 'mmcv')

from mmengine.config import DictAction

from mmsoft.engine.cli import run_tool
from mmsoft.engine.config import CONFIG_HELP, load_config
from mmsoft.engine.demo import check_options
from mmsoft.engine.launch import LAUNCHERS, part_processes
from mmsoft.engine.own_data import DATA_HELP, folder_name
from mmsoft.engine.own_data import check_options as check_own_data
from mmsoft.engine.training import evaluate, run_folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help=CONFIG_HELP)
    parser.add_argument('checkpoint', help='.pth, .safetensors, or the folder of a run for its last one')
    parser.add_argument(
        '--work-dir',
        help='logs and metrics.json; by default beside the checkpoint if a run wrote it there, else work_dirs/<config>',
    )
    parser.add_argument('--out', metavar='FILE.pkl', help='save all predictions')
    parser.add_argument('--show-dir', metavar='FOLDER', help='draw the predictions of every image')
    parser.add_argument(
        '--sizes',
        type=int,
        nargs='+',
        default=(),
        metavar='PIXELS',
        help='test a classifier with pictures of each size',
    )
    parser.add_argument('--data', metavar='FOLDER', help=DATA_HELP)
    parser.add_argument('--demo', action='store_true', help='on images drawn on the spot')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE', help='change values of the config'
    )
    parser.add_argument('--launcher', choices=LAUNCHERS, default='none')
    parser.add_argument('--local-rank', '--local_rank', type=int, help=argparse.SUPPRESS)  # old launchers pass it
    parser.add_argument(
        '--trust-checkpoint', action='store_true', help='read a pickle that may run code of whoever wrote it'
    )
    args = parser.parse_args()
    if args.demo:
        check_options(args.cfg_options or {})
    if args.data:
        check_own_data(args.cfg_options or {}, args.demo)
    cfg = load_config(args.config, args.cfg_options)
    own = f'work_dirs/{Path(args.config).stem}{"_demo" * args.demo}'
    place = run_folder(args.checkpoint) or cfg.get('work_dir') or own
    if args.data:  # the config of a run there stays
        place = f'{place}/test{folder_name(args.data)}'
    evaluate(
        cfg,
        args.checkpoint,
        work_dir=args.work_dir or place,
        out=args.out,
        drawings=args.show_dir,
        demo=args.demo,
        launcher=args.launcher,
        trust_checkpoint=args.trust_checkpoint,
        sizes=args.sizes,
        data=args.data,
    )
    part_processes()


if __name__ == '__main__':
    run_tool(main)
