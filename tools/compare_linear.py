"""Make trained softmax models linear without labels; compare with their teachers and with training anew.

Of the demo's drawn world, a detector and a segmentor; with --pictures, a classifier of your class folders.
for example: python tools/compare_linear.py --seeds 3 --out work_dirs/linear/linear.json
"""

import argparse
import json
import sys
from pathlib import Path

from mmsoft.engine.preemption import Preempted, request

request.listen()  # a signal ends the run after an iteration, and the same command goes on

from mmsoft.versions import require

require('mmengine', 'mmcv', 'mmdet', 'mmseg')

from studies import linear_pictures
from studies.learning import Recipe
from studies.linear import CONFIGS, EPOCHS, study, study_table

from mmsoft.engine.cli import run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', type=int, default=1, help='teachers a task; each takes minutes')
    parser.add_argument('--tasks', nargs='+', choices=CONFIGS, help='by default all')
    parser.add_argument('--pictures', metavar='FOLDER', help='train/<class>/ and val/<class>/, instead of the tasks')
    parser.add_argument('--size', type=int, help=f'of --pictures, a multiple of 32 (default {Recipe.size})')
    parser.add_argument('--epochs', type=int, help=f'of the teacher, a multiple of 4 ({EPOCHS}; {Recipe.epochs})')
    parser.add_argument('--work-dir', default='work_dirs/linear', help='what is finished there is not repeated')
    parser.add_argument('--out', metavar='FILE.json', help='keep the values, and the table beside them')
    args = parser.parse_args()
    if args.tasks and args.pictures:
        parser.error('--tasks are of the drawn world: leave out --tasks, or --pictures')
    if args.size is not None and not args.pictures:
        parser.error('--size is of --pictures: leave out --size, or name a folder')
    size = Recipe.size if args.size is None else args.size
    epochs = args.epochs
    if epochs is None:
        epochs = Recipe.epochs if args.pictures else EPOCHS
    if args.seeds < 1 or epochs < 4 or epochs % 4 or size < 32 or size % 32:
        raise SystemExit(
            'error: --seeds must be 1 or more, --epochs a multiple of 4, --size one of 32; '
            f'got {args.seeds}, {epochs}, {size}'
        )
    work_dir, seeds = Path(args.work_dir), range(args.seeds)
    try:
        if args.pictures:
            found = linear_pictures.study(args.pictures, seeds, Recipe(size, epochs), work_dir)
            table = linear_pictures.study_table(found)
        else:
            found = study(work_dir, seeds, args.tasks or CONFIGS, epochs)
            table = study_table(found)
    except Preempted as stop:
        sys.exit(f'{stop}; run the same command again to go on')
    print(table)
    if args.out:
        content = dict(epochs=epochs, seeds=args.seeds, scores=found)
        Path(args.out).write_text(json.dumps(content, indent=1) + '\n')
        Path(args.out).with_suffix('.md').write_text(table + '\n')


if __name__ == '__main__':
    run_tool(main)
