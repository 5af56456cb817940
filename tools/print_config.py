"""Print the whole config: bases joined, options merged.

for example: python tools/print_config.py configs/retinanet_soft_pp_small_1x_coco.py --out whole.py
"""

import argparse
import contextlib
import sys
from pathlib import Path

from mmsoft.versions import require

require('mmengine')

from mmengine.config import DictAction

from mmsoft.engine.cli import run_tool
from mmsoft.engine.config import CONFIG_HELP, load_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help=CONFIG_HELP)
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE', help='change values of the config'
    )
    parser.add_argument('--demo', action='store_true', help='as --demo of the other tools changes it')
    parser.add_argument('--out', type=Path, metavar='FILE.py', help='also write it')
    args = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):  # remarks are no part of the config
        cfg = load_config(args.config, args.cfg_options)
        if args.demo:
            from mmsoft.engine.demo import overlay

            overlay(cfg)
    print(cfg.pretty_text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        cfg.dump(args.out)


if __name__ == '__main__':
    run_tool(main)
