"""Train a model from a config file: on a CPU, on one GPU, or in many processes.

for example: python tools/train.py configs/retinanet_soft_pp_small_1x_coco.py --data my_set/ --no-pretrained
"""

import argparse
import sys
from pathlib import Path

from mmsoft.engine.preemption import Preempted, request

request.listen()  # importing takes seconds, too

from mmsoft.versions import require

require('mmengine', 'mmcv')

from mmengine.config import DictAction

from mmsoft.engine.cli import add_img_size, numbers_joined, run_tool
from mmsoft.engine.config import CONFIG_HELP, load_config
from mmsoft.engine.demo import check_options
from mmsoft.engine.launch import LAUNCHERS, part_processes
from mmsoft.engine.own_data import DATA_HELP, folder_name
from mmsoft.engine.own_data import check_options as check_own_data
from mmsoft.engine.telling import next_steps
from mmsoft.engine.training import demo_report, train

LENGTH = {'train_cfg', 'param_scheduler'}  # options that --data leaves as they are given


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help=CONFIG_HELP)
    parser.add_argument('--work-dir', help='logs and checkpoints; by default work_dirs/<name of the config>')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on; auto (default): from the last one of --work-dir',
    )
    parser.add_argument(
        '--resume-anyway',
        action='store_true',
        help='go on though the batch, the processes, the lr or anything else that the results depend on has changed; '
        'the new values count',
    )
    parser.add_argument(
        '--save-every',
        metavar='INTERVAL',
        help='also save when the last checkpoint is so old, and keep the newest of these: a time such as 90s, 15min or '
        '2h, or iterations such as 500it',
    )
    parser.add_argument(
        '--layer-decay',
        type=float,
        metavar='FACTOR',
        help='lr of a layer of the backbone over that of the layer above it, as 0.8',
    )
    parser.add_argument('--amp', action='store_true', help='mixed precision: float16 on a GPU, bfloat16 on a CPU')
    parser.add_argument('--auto-scale-lr', action='store_true', help='scale the lr to the batch of all processes')
    parser.add_argument(
        '--no-pretrained', action='store_true', help='start at random instead of from pretrained weights'
    )
    parser.add_argument(
        '--fine-tune',
        metavar='CHECKPOINT',
        help='start from it, or from the last one of a run; layers of classes are new where these differ',
    )
    parser.add_argument(
        '--linear-probe', metavar='CHECKPOINT', help="train a classifier's new head only, on features of it"
    )
    add_img_size(parser)
    parser.add_argument('--epochs', type=int, metavar='N', help='another length of the run; the schedule follows')
    parser.add_argument(
        '--batch', type=int, metavar='N', help='images of an iteration, in all processes together; see --auto-scale-lr'
    )
    parser.add_argument('--data', metavar='FOLDER', help=DATA_HELP)
    parser.add_argument('--demo', action='store_true', help='a short training on images drawn on the spot')
    parser.add_argument('--seed', type=int, help="by default the config's randomness.seed, or 0")
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE', help='change values of the config'
    )
    parser.add_argument('--launcher', choices=LAUNCHERS, default='none')
    parser.add_argument('--local-rank', '--local_rank', type=int, help=argparse.SUPPRESS)  # old launchers pass it
    parser.add_argument(
        '--trust-checkpoint', action='store_true', help='resume from a pickle that may run code of whoever wrote it'
    )
    return parser.parse_args(numbers_joined(sys.argv[1:]))


def main() -> None:
    args = parse()
    if args.demo:
        check_options(args.cfg_options or {}, dict(epochs=args.epochs, batch=args.batch))
    if args.data:
        check_own_data(args.cfg_options or {}, args.demo)
    cfg = load_config(args.config, args.cfg_options)
    kind = '_demo' * args.demo + ('_fine_tune' if args.fine_tune else '_linear_probe' if args.linear_probe else '')
    kind += folder_name(args.data)
    try:
        runner = train(
            cfg,
            work_dir=args.work_dir or cfg.get('work_dir') or f'work_dirs/{Path(args.config).stem}{kind}',
            resume=args.resume,
            amp=args.amp,
            auto_scale_lr=args.auto_scale_lr,
            pretrained=not args.no_pretrained,
            demo=args.demo,
            seed=args.seed,
            launcher=args.launcher,
            trust_checkpoint=args.trust_checkpoint,
            fine_tune=args.fine_tune,
            linear_probe=args.linear_probe,
            img_size=args.img_size,
            save_every=args.save_every,
            resume_anyway=args.resume_anyway,
            layer_decay=args.layer_decay,
            data=args.data,
            epochs=args.epochs,
            batch=args.batch,
            keep_length=bool(LENGTH & {key.split('.')[0] for key in args.cfg_options or {}}),
        )
    except Preempted as stop:
        print(f'{stop}; go on with --resume', file=sys.stderr)
        part_processes(stop.code)
        raise
    if runner.rank == 0:
        print(next_steps(runner, sys.argv[0]))
    if args.demo and runner.rank == 0:
        for name, path in demo_report(runner).items():
            print(f'{name}: {path}')
    part_processes()


if __name__ == '__main__':
    run_tool(main)
