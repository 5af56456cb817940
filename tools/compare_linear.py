"""Make drawn softmax detectors and segmentors linear without labels; compare with their teachers and with scratch.

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

from studies.linear import CONFIGS, EPOCHS, study, study_table

from mmsoft.engine.cli import run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', type=int, default=1, help='teachers a task; each takes minutes')
    parser.add_argument('--tasks', nargs='+', default=list(CONFIGS), choices=CONFIGS)
    parser.add_argument('--epochs', type=int, default=EPOCHS, help='of the teacher, a multiple of 4')
    parser.add_argument('--work-dir', default='work_dirs/linear', help='what is finished there is not repeated')
    parser.add_argument('--out', metavar='FILE.json', help='keep the values, and the table beside them')
    args = parser.parse_args()
    if args.seeds < 1 or args.epochs < 4 or args.epochs % 4:
        raise SystemExit(f'error: --seeds must be 1 or more, --epochs a multiple of 4; got {args.seeds}, {args.epochs}')
    try:
        found = study(Path(args.work_dir), range(args.seeds), args.tasks, args.epochs)
    except Preempted as stop:
        sys.exit(f'{stop}; run the same command again to go on')
    print(study_table(found))
    if args.out:
        content = dict(epochs=args.epochs, seeds=args.seeds, scores=found)
        Path(args.out).write_text(json.dumps(content, indent=1) + '\n')
        Path(args.out).with_suffix('.md').write_text(study_table(found) + '\n')


if __name__ == '__main__':
    run_tool(main)
