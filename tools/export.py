"""Export a model to one file that runs without torch and OpenMMLab, and show that it answers the same.

for example: python tools/export.py epoch_12.pth --out model.onnx
"""

import argparse
from pathlib import Path

from mmsoft.versions import require

require('mmengine', 'mmcv', 'onnx', 'onnxscript', 'onnxruntime')

from mmengine.config import DictAction

from mmsoft.engine.cli import run_tool
from mmsoft.engine.config import load_config
from mmsoft.engine.own_data import DATA_HELP, check_options
from mmsoft.exporting import export
from mmsoft.exporting.benchmark import compare_cost
from mmsoft.exporting.parity import TOLERANCES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', nargs='?', help='by default the one that the checkpoint carries')
    parser.add_argument('checkpoint', help='.pth, .safetensors, or the folder of a run for its last one')
    parser.add_argument('--out', required=True, metavar='FILE', help='.onnx or .pt2')
    parser.add_argument('--precision', choices=TOLERANCES, default='fp32')
    parser.add_argument('--images', metavar='FOLDER', help='of --precision int8: pictures on which it measures ranges')
    parser.add_argument(
        '--raw', action='store_true', help='what the network gives before it is decoded, of any detector or segmentor'
    )
    parser.add_argument(
        '--pictures', nargs='+', default=(), metavar='FILE', help='compare on these; by default on drawn ones'
    )
    parser.add_argument('--data', metavar='FOLDER', help=DATA_HELP)
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE', help='change values of the config'
    )
    parser.add_argument(
        '--trust-checkpoint', action='store_true', help='read a pickle that may run code of whoever wrote it'
    )
    parser.add_argument('--benchmark', action='store_true', help="then time and memory beside the checkpoint's")
    parser.add_argument('--threads', type=int, default=2, help='of --benchmark (default 2)')
    args = parser.parse_args()
    if args.benchmark and (args.raw or not args.out.endswith('.onnx')):
        parser.error(f'--benchmark measures whole models in .onnx; leave it out for {args.out}')
    if args.threads < 1:
        parser.error(f'--threads must be 1 or more; got {args.threads}')
    if args.data:
        check_options(args.cfg_options or {})
    config = load_config(args.config, args.cfg_options) if args.config else None
    options = None if args.config else args.cfg_options
    export(
        config,
        args.checkpoint,
        args.out,
        args.precision,
        args.pictures,
        args.trust_checkpoint,
        options,
        args.raw,
        args.data,
        args.images,
    )
    if args.benchmark:
        print(compare_cost(args.checkpoint, Path(args.out), config, args.threads, args.trust_checkpoint, options))
    print(f'{args.out} is written; see docs/deploy.md on how to run it')


if __name__ == '__main__':
    run_tool(main)
