"""Time of mmcv's operators, compiled and by mmsoft.mmcv_ops, in turns in one run; needs a compiled mmcv.

for example: python tools/compare_mmcv_ops.py --rounds 15 --threads 2
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from mmsoft.versions import require

require('mmcv')

import mmcv.ops
import torch

from mmsoft import mmcv_ops
from mmsoft.mmcv_ops import ext


def boxes(count: int, width: int = 1344, height: int = 800) -> torch.Tensor:
    """Random boxes (count, 4), a sixth of the image long."""
    limits = torch.tensor([width, height])
    corner = torch.rand(count, 2) * limits
    return torch.cat((corner, corner + torch.rand(count, 2) * limits / 3), dim=1)


def cases() -> dict[str, tuple[str, Callable]]:
    """Module of mmcv.ops and a call, by what they stand for."""
    rois = torch.cat((torch.zeros(512, 1), boxes(512)), dim=1)
    maps = torch.randn(1, 256, 100, 168, requires_grad=True)
    proposals, detections = (boxes(4693), torch.rand(4693)), (boxes(1000), torch.rand(1000))

    def align(backward: bool) -> None:
        with torch.set_grad_enabled(backward):
            pooled = mmcv.ops.roi_align(maps, rois, (7, 7), 1 / 8, 0, 'avg', True)
        if backward:
            pooled.backward(torch.ones_like(pooled))

    return {
        'nms, 4693 proposals': ('nms', lambda: mmcv.ops.nms(*proposals, 0.7)),
        'nms, 1000 detections': ('nms', lambda: mmcv.ops.nms(*detections, 0.5)),
        'soft_nms, 1000 detections': ('nms', lambda: mmcv.ops.soft_nms(*detections, 0.5)),
        'RoIAlign, 512 regions, forward': ('roi_align', lambda: align(False)),
        'RoIAlign, 512 regions, and backward': ('roi_align', lambda: align(True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=15, help='times that each is measured, in turns (default: 15)')
    parser.add_argument('--threads', type=int, help='threads of torch')
    args = parser.parse_args()
    if mmcv_ops.provider()[0] != 'compiled':
        sys.exit('this mmcv has no compiled operators to compare with; see docs/installation.md for how to build them.')
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print('| operator | compiled | ours | ratio (rounds) |\n|---|---|---|---|')
    for name, (module, call) in cases().items():
        module = sys.modules[f'mmcv.ops.{module}']
        choices, times = (module.ext_module, ext), ([], [])
        for turn in range(2 * (args.rounds + 1)):
            module.ext_module = choices[turn % 2]
            start = time.perf_counter()
            call()
            if turn > 1:  # the first of each warms up
                times[turn % 2].append(time.perf_counter() - start)
        module.ext_module = choices[0]
        ratios = sorted(ours / compiled for compiled, ours in zip(*times, strict=True))
        compiled, ours = (1000 * statistics.median(values) for values in times)
        ratio = f'{statistics.median(ratios):.2f} ({ratios[1]:.2f} to {ratios[-2]:.2f})'
        print(f'| {name} | {compiled:.2f} ms | {ours:.2f} ms | {ratio} |')


if __name__ == '__main__':
    main()
