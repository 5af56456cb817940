"""Make a trained softmax model linear, without labels: copy, match outputs of attentions, match maps.

for example: python tools/linearize.py swin_config.py swin.pth --images photos/ --out linear/
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from mmsoft.engine.preemption import Preempted, request

request.listen()  # importing takes seconds, too

from mmsoft.versions import require

require('mmengine', 'mmcv')

from mmengine.config import DictAction
from mmengine.dist import is_main_process

from mmsoft.distillation.linearizing import STEPS, linearize_run
from mmsoft.distillation.reporting import check_report, report_places, report_run
from mmsoft.distillation.teaching import STAGES
from mmsoft.engine.cli import run_tool
from mmsoft.engine.launch import LAUNCHERS, part_processes
from mmsoft.engine.own_data import DATA_HELP, check_options


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'teacher', help="a config, timm:<name>, torchvision:<name>, or the authors' file of a Swin or PVT v1"
    )
    parser.add_argument('checkpoint', nargs='?', help='its weights; of timm and torchvision by default their own')
    parser.add_argument('--out', required=True, metavar='FOLDER', help='gets linear.py and linear.pth')
    parser.add_argument(
        '--images', nargs='+', metavar='FOLDER', help="pictures to learn from; by default the config's training set"
    )
    parser.add_argument(
        '--inline', type=int, nargs='+', metavar='LAYERS', help='how many layers of each stage become linear'
    )
    parser.add_argument(
        '--attention', default='inline', metavar='NAME', help="for models on SOFT's frame: which attention they get"
    )
    parser.add_argument(
        '--stages', nargs='*', choices=('copy', *STAGES), default=STAGES, help='by default outputs maps; copy: no more'
    )
    parser.add_argument(
        '--steps',
        type=int,
        nargs=2,
        metavar=('OUTPUTS', 'MAPS'),
        help='by default {outputs} {maps}; 0 leaves a stage out'.format(**STEPS),
    )
    parser.add_argument('--lr', type=float, nargs=2, metavar=('OUTPUTS', 'MAPS'))
    parser.add_argument('--batch-size', type=int, default=8, help='of each process (default 8)')
    parser.add_argument('--workers', type=int, default=2, help='that read pictures (default 2)')
    parser.add_argument('--amp', action='store_true', help='mixed precision: float16 on a GPU, bfloat16 on a CPU')
    parser.add_argument('--resume', action='store_true', help='go on with what was interrupted')
    parser.add_argument('--save-every', metavar='INTERVAL', help='as of train.py: 90s, 15min, 2h or 500it')
    parser.add_argument('--data', metavar='FOLDER', help=DATA_HELP)
    parser.add_argument('--demo', action='store_true', help='the teacher was trained by train.py --demo')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE', help="change values of the teacher's config"
    )
    parser.add_argument('--no-report', action='store_true', help='leave the comparison with the teacher out')
    parser.add_argument(
        '--report-images',
        nargs='+',
        metavar='FOLDER',
        help="for the report; by default the config's validation set, or --images",
    )
    parser.add_argument('--labels', action='store_true', help="also report the metrics on the config's test set")
    parser.add_argument('--launcher', choices=LAUNCHERS, default='none')
    parser.add_argument('--local-rank', '--local_rank', type=int, help=argparse.SUPPRESS)  # old launchers pass it
    parser.add_argument(
        '--trust-checkpoint', action='store_true', help='read a pickle that may run code of whoever wrote it'
    )
    args = parser.parse_args()
    if args.no_report and (args.labels or args.report_images):
        parser.error('--labels and --report-images are for the report: leave them out, or --no-report')
    return args


def main() -> None:
    args = parse()
    if args.data:
        check_options(args.cfg_options or {}, args.demo)
    stages = [stage for stage in STAGES if stage in args.stages]
    try:
        source, linear, written = linearize_run(
            args.teacher,
            args.checkpoint,
            args.out,
            images=args.images,
            inline=args.inline,
            attention=args.attention,
            stages=stages,
            steps=dict(zip(STAGES, args.steps, strict=True)) if args.steps else None,
            lr=dict(zip(STAGES, args.lr, strict=True)) if args.lr else None,
            batch_size=args.batch_size,
            workers=args.workers,
            amp=args.amp,
            resume=args.resume,
            seed=args.seed,
            save_every=args.save_every,
            launcher=args.launcher,
            trust=args.trust_checkpoint,
            demo=args.demo,
            options=args.cfg_options,
            data=args.data,
            check=None
            if args.no_report
            else partial(check_report, asked=args.report_images, images=args.images, labels=args.labels),
        )
    except Preempted as stop:
        print(f'{stop}; go on with --resume', file=sys.stderr)
        part_processes(stop.code)
        raise
    if not args.no_report and is_main_process():
        places, where = args.report_images, ' of --report-images'
        if not places:
            places, where = report_places(source, linear.cfg, args.images)
        options = dict(labels=args.labels, trust=args.trust_checkpoint, where=where)
        files = report_run(source, linear, written, places, args.checkpoint, **options)
        print(files[1].read_text(encoding='utf-8'))
    print(f'linear model: {Path(args.out, "linear.py")} {written["linear"]}')
    part_processes()


if __name__ == '__main__':
    run_tool(main)
