"""Publish a checkpoint: weights alone, as .pth and .safetensors with their hash in the name, and a card as JSON.

for example: python tools/publish_checkpoint.py work_dirs/my_run/epoch_12.pth --out-dir published
"""

import argparse

from mmsoft.versions import require

require('mmengine', 'mmcv')

from mmsoft.engine.cli import run_tool
from mmsoft.engine.publishing import CHOICES, publish


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('source', metavar='SRC', help='a checkpoint of training, or bare weights')
    parser.add_argument('--out-dir', help='by default beside SRC')
    parser.add_argument('--name', help="before the hash; by default the config's or SRC's")
    parser.add_argument('--part', choices=CHOICES, default='model', help='all (default), or our part of it alone')
    parser.add_argument('--metrics', metavar='FILE.json', help='by default metrics.json beside SRC, if it is of SRC')
    parser.add_argument(
        '--trust-checkpoint', action='store_true', help='read a pickle that may run code of whoever wrote it'
    )
    args = parser.parse_args()
    print(
        publish(
            args.source,
            out_dir=args.out_dir,
            name=args.name,
            part=args.part,
            metrics=args.metrics,
            trust=args.trust_checkpoint,
        )
    )


if __name__ == '__main__':
    run_tool(main)
