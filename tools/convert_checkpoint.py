"""Convert weights of our families: the authors' names to ours, ours to theirs; those of the file tell which.

for example: python tools/convert_checkpoint.py downloaded.pth pretrained/soft_pp_small.safetensors
"""

import argparse

from mmsoft.checkpoints.converting import PARTS, convert
from mmsoft.engine.cli import add_import, run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('source', metavar='SRC', help='.pth or .safetensors: a path, an http(s) address or a hub id')
    parser.add_argument('target', metavar='DST', help='.pth or .safetensors')
    parser.add_argument('--part', choices=PARTS, help='what to keep; by default what there is')
    parser.add_argument('--force', action='store_true', help='replace DST if it exists')
    parser.add_argument(
        '--trust-checkpoint', action='store_true', help='read a pickle that may run code of whoever wrote it'
    )
    add_import(parser)
    args = parser.parse_args()
    print(convert(args.source, args.target, part=args.part, trust=args.trust_checkpoint, force=args.force))


if __name__ == '__main__':
    run_tool(main)
