"""Train small classifiers on drawn pictures and test them at larger sizes, with both landmark rules (Table 6).

for example: python tools/compare_sizes.py --seeds 3 --out work_dirs/sizes/sizes.json
"""

import argparse

from mmsoft.versions import require

require('mmengine', 'mmcv', 'timm')

from studies.sizes import save, study, study_table

from mmsoft.engine.cli import run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', type=int, default=1, help='trainings an attention; each takes minutes')
    parser.add_argument('--arch', default='tiny', choices=('tiny', 'small', 'medium', 'large'))
    parser.add_argument(
        '--work-dir', default='work_dirs/sizes', help='trainings that are finished there are not repeated'
    )
    parser.add_argument('--out', metavar='FILE.json', help='keep the values')
    args = parser.parse_args()
    if args.seeds < 1:
        raise SystemExit(f'error: --seeds must be 1 or more; got {args.seeds}')
    found = study(args.work_dir, range(args.seeds), args.arch)
    print(study_table(found))
    if args.out:
        save(found, args.out, range(args.seeds), args.arch)


if __name__ == '__main__':
    run_tool(main)
