"""Print forward time and memory of a backbone at 800 x 1344 beside mmdet's Swin-T (fp32, batch 1, CPU)."""

import argparse
import json
from pathlib import Path

from mmsoft.engine.benchmark import dense_figures
from mmsoft.engine.cli import run_tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--ours', default='soft_pp_small')
    parser.add_argument('--peer', default='swin_tiny')
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--out', type=Path, help='also write the figures as JSON')
    args = parser.parse_args()
    figures = dense_figures(args.ours, args.peer, args.rounds, args.threads)
    seconds, memory = figures['forward_seconds'], figures['peak_mib']
    low, high = figures['forward_ratio_range']
    print(f'{figures["machine"]}\n')
    print(f'| {args.ours}, fp32, batch 1 | measured | ratio |')
    print('|---|---|---|')
    print(
        f'| forward, 800 x 1344, against {args.peer} | {seconds["ours"]:.3f} s / {seconds["peer"]:.3f} s '
        f'| {figures["forward_ratio"]:.2f} ({low:.2f} to {high:.2f}) |'
    )
    print(
        f'| time a pixel, 800 x 1344 against 224 x 224 | {seconds["ours"]:.3f} s / {seconds["ours_224"]:.4f} s '
        f'| {figures["time_a_pixel_ratio"]:.2f} |'
    )
    print(
        f'| peak memory added, forward, 800 x 1344, against {args.peer} '
        f'| {memory[args.ours]:.0f} MiB / {memory[args.peer]:.0f} MiB | {figures["memory_ratio"]:.2f} |'
    )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(figures, indent=1) + '\n')


if __name__ == '__main__':
    run_tool(main)
