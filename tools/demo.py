"""Build the backbone as a detector's config would, and run it forward and backward on an 800 x 1333 image."""

import argparse
import time

import torch

from mmsoft.versions import require


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--arch', default='small')
    parser.add_argument('--attn', default='soft_pp')
    parser.add_argument('--size', type=int, nargs=2, default=(800, 1333), metavar=('H', 'W'))
    args = parser.parse_args()
    require('mmcv', 'mmdet')
    from mmdet.registry import MODELS

    torch.manual_seed(0)
    backbone = MODELS.build(dict(type='mmsoft.SOFT', arch=args.arch, attn=args.attn))
    image = torch.randn(1, 3, *args.size)
    print(f'{args.attn} {args.arch}, {sum(p.numel() for p in backbone.parameters()) / 1e6:.2f} M parameters')
    start = time.perf_counter()
    maps = backbone(image)
    middle = time.perf_counter()
    sum(x.square().mean() for x in maps).backward()
    end = time.perf_counter()
    for stride, x in zip(backbone.strides, maps, strict=True):
        print(f'stride {stride:>2}: {tuple(x.shape)}')
    print(f'{args.size[0]} x {args.size[1]}: forward {middle - start:.2f} s, backward {end - middle:.2f} s')
    finite = all(p.grad is not None and p.grad.isfinite().all() for p in backbone.parameters())
    print('every parameter has a finite gradient' if finite else 'a parameter has no finite gradient')
    raise SystemExit(not finite)


if __name__ == '__main__':
    main()
