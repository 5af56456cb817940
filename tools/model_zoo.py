"""Print the tables of the model zoo from model-index.yml and its metafiles, or write them into the docs' page.

for example: python tools/model_zoo.py --write
"""

import argparse
from pathlib import Path

from mmsoft.versions import require

require('mmengine', 'mmcv')

from mmsoft.engine.cli import run_tool
from mmsoft.engine.model_zoo import read_zoo, update_page, zoo_tables

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--write', action='store_true', help='between the markers of docs/model_zoo.md')
    args = parser.parse_args()
    print(f'written to {update_page(ROOT)}' if args.write else zoo_tables(read_zoo(ROOT)))


if __name__ == '__main__':
    run_tool(main)
