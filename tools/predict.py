"""Predict pictures and videos: COCO results or label maps, and drawings.

for example: python tools/predict.py epoch_12.pth photos/ --out-dir found
"""

import argparse

from mmsoft.versions import require

require('mmengine', 'mmcv')

from mmengine.config import DictAction

from mmsoft.engine.cli import run_tool
from mmsoft.engine.config import is_config, load_config
from mmsoft.engine.predict import predict
from mmsoft.files import shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', nargs='?', help='by default the one that the checkpoint carries')
    parser.add_argument(
        'checkpoint', help='.pth, .safetensors, the folder of a run for its last one, or .onnx of mmsoft export'
    )
    parser.add_argument('inputs', nargs='+', metavar='INPUT', help='picture, video, folder or quoted glob pattern')
    parser.add_argument('--out-dir', required=True, metavar='FOLDER')
    parser.add_argument('--device', default='auto', help='auto (default), cpu or cuda:0')
    parser.add_argument(
        '--score-thr', type=float, default=0.3, help='of drawn detections; results.json has all (default 0.3)'
    )
    parser.add_argument('--no-drawings', action='store_true', help='write the results alone')
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE', help='change values of the config'
    )
    parser.add_argument(
        '--trust-checkpoint', action='store_true', help='read a pickle that may run code of whoever wrote it'
    )
    args = parser.parse_args()
    if args.config and not is_config(args.config):  # what is left out is the config
        args.config, args.checkpoint, args.inputs = None, args.config, [args.checkpoint, *args.inputs]
    summary = predict(
        load_config(args.config, args.cfg_options) if args.config else None,
        args.checkpoint,
        args.inputs,
        args.out_dir,
        device=args.device,
        score_thr=args.score_thr,
        trust=args.trust_checkpoint,
        drawings=not args.no_drawings,
        options=None if args.config else args.cfg_options,
    )
    for file, reason in summary.unreadable.items():
        print(shown(f'{file} {reason}'))
    print(f'{summary.read} pictures and frames predicted, {len(summary.unreadable)} files at fault; see {args.out_dir}')
    raise SystemExit(summary.read == 0)


if __name__ == '__main__':
    run_tool(main)
