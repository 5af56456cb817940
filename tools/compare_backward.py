"""Train small classifiers with each gradient of Newton's inverse and print the comparison.

for example: python tools/compare_backward.py --attn soft_pp --seeds 5
"""

import argparse
import json
import platform
from pathlib import Path

import torch
from studies.backward import summarise, train_pair

from mmsoft.engine.cli import run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--attn', nargs='+', default=['soft_pp', 'soft'])
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--steps', type=int, default=300)
    parser.add_argument('--batch', type=int, default=16)
    parser.add_argument('--test-images', type=int, default=512)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--out', type=Path, help='write every run as JSON')
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    records = []
    for attn in args.attn:
        for seed in range(args.seeds):
            for record in train_pair(attn, seed, args.steps, args.batch, args.test_images):
                records.append(record)
                print(
                    f'{attn} {record["backward"]:<8} seed {seed}: loss {record["loss"]:.4f}, '
                    f'accuracy {record["accuracy"]:.3f}, {1000 * record["seconds_a_step"]:.0f} ms a step',
                    flush=True,
                )
    print('\n' + summarise(records))
    if args.out:
        versions = dict(python=platform.python_version(), torch=torch.__version__, threads=args.threads)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(dict(versions=versions, runs=records), indent=1) + '\n')


if __name__ == '__main__':
    run_tool(main)
