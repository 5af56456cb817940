"""Calls of mmcv.ops whose results are kept in data/mmcv_ops.npz, computed by mmcv's own compiled operators.

    python tests/support/mmcv_cases.py        in an environment with a compiled mmcv: writes the file anew

The file here is of onedl-mmcv 2.3.6, built with MMCV_WITH_OPS=1 against torch 2.12.1 for CPUs. Inputs come from numpy's
RandomState, whose numbers never change.
"""

import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch
from helpers import DATA
from torch import Tensor

FILE = DATA / 'mmcv_ops.npz'


class Draw:
    """Random tensors of one case."""

    def __init__(self, seed: int, device: str = 'cpu') -> None:
        self.random, self.device = np.random.RandomState(seed), device

    def _place(self, numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers).to(self.device)

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        return self._place(scale * self.random.randn(*shape)).float()

    def uniform(self, *shape: int) -> Tensor:
        return self._place(self.random.rand(*shape)).float()

    def integers(self, high: int, *shape: int) -> Tensor:
        return self._place(self.random.randint(high, size=shape))

    def boxes(self, count: int, side: float = 60.0) -> Tensor:
        """(x1, y1, x2, y2), a quarter of them nearly doubles of others."""
        corner = self.uniform(count, 2) * side
        boxes = torch.cat((corner, corner + self.uniform(count, 2) * side / 2), dim=1)
        boxes[count - count // 4 :] = boxes[: count // 4] + self(count // 4, 4)
        return boxes

    def rotated(self, count: int, side: float = 40.0) -> Tensor:
        """(x, y, width, height, angle)."""
        sizes = self.uniform(count, 2) * side / 2 + 1
        return torch.cat((self.uniform(count, 2) * side, sizes, self(count, 1, scale=2)), dim=1)

    def rois(self, count: int, images: int, side: float) -> Tensor:
        """(image, x1, y1, x2, y2), some of them beyond the border."""
        images_ = self.integers(images, count, 1).float()
        return torch.cat((images_, self.boxes(count, side) - side / 8), dim=1)


def with_gradients(function: Callable, *inputs: Tensor | None) -> dict[str, Tensor]:
    """Output and the gradients of a weighted sum of it."""
    leaves = [None if x is None else x.detach().clone().requires_grad_() for x in inputs]
    output = function(*leaves)
    weights = torch.from_numpy(np.asarray(np.random.RandomState(99).randn(*output.shape))).to(output)
    wanted = [x for x in leaves if x is not None]
    gradients = torch.autograd.grad((output * weights).sum(), wanted)
    return dict(output=output.detach(), **{f'grad{i}': gradient for i, gradient in enumerate(gradients)})


def suppression(draw: Draw) -> Iterator[tuple[str, dict[str, Tensor]]]:
    from mmcv.ops import batched_nms, nms, nms_match, soft_nms

    boxes, scores = draw.boxes(80), draw.uniform(80)
    for offset in (0, 1):
        dets, kept = nms(boxes, scores, 0.4, offset=offset, score_threshold=0.1, max_num=50)
        yield f'nms_offset{offset}', dict(dets=dets, kept=kept)
        for method in ('naive', 'linear', 'gaussian'):
            dets, kept = soft_nms(boxes, scores, 0.3, sigma=0.5, min_score=0.05, method=method, offset=offset)
            yield f'soft_nms_{method}{offset}', dict(dets=dets, kept=kept)
    labels = draw.integers(3, 80)
    for kind, threshold in (('nms', 10000), ('nms', 20), ('soft_nms', 10000)):
        dets, kept = batched_nms(boxes, scores, labels, dict(type=kind, iou_threshold=0.4, split_thr=threshold))
        yield f'batched_{kind}{threshold}', dict(dets=dets, kept=kept)
    groups = nms_match(torch.cat((boxes, scores[:, None]), dim=1), 0.4)
    yield 'nms_match', dict(sizes=torch.tensor([len(group) for group in groups]), indices=torch.cat(groups))


def rotated(draw: Draw) -> Iterator[tuple[str, dict[str, Tensor]]]:
    from mmcv.ops import box_iou_rotated, nms_rotated

    a, b = draw.rotated(30), draw.rotated(20)
    for mode in ('iou', 'iof'):
        for clockwise in (True, False):
            yield f'box_iou_rotated_{mode}{clockwise}', dict(ious=box_iou_rotated(a, b, mode, clockwise=clockwise))
    yield 'box_iou_rotated_aligned', dict(ious=box_iou_rotated(a[:20], b, aligned=True))
    dets, kept = nms_rotated(a, draw.uniform(30), 0.2)
    yield 'nms_rotated', dict(dets=dets, kept=kept)


def regions(draw: Draw) -> Iterator[tuple[str, dict[str, Tensor]]]:
    from mmcv.ops import roi_align

    maps, rois = draw(2, 3, 13, 17), draw.rois(9, 2, 60)
    for ratio in (0, 2):
        for aligned in (True, False):
            yield (
                f'roi_align{ratio}{aligned}',
                with_gradients(lambda x, a=aligned, r=ratio: roi_align(x, rois, (5, 3), 0.25, r, 'avg', a), maps),
            )


def convolutions(draw: Draw) -> Iterator[tuple[str, dict[str, Tensor]]]:
    from mmcv.ops import deform_conv2d, modulated_deform_conv2d

    sizes = dict(plain=(1, 1, 1, 1, 1), strided=(2, 1, 2, 2, 2))
    for name, (stride, padding, dilation, groups, deform_groups) in sizes.items():
        maps, weight, bias = draw(3, 4, 11, 9), draw(6, 4 // groups, 3, 3), draw(6)
        reach = 2 * dilation + 1
        out = [(side + 2 * padding - reach) // stride + 1 for side in (11, 9)]
        offset, mask = draw(3, 18 * deform_groups, *out, scale=3), draw.uniform(3, 9 * deform_groups, *out)
        options = (stride, padding, dilation, groups, deform_groups)
        yield (
            f'deform_conv_{name}',
            with_gradients(lambda x, o, w, p=options: deform_conv2d(x, o, w, *p), maps, offset, weight),
        )
        for some_bias in (bias, None):
            yield (
                f'modulated_{name}_{"with" if some_bias is not None else "without"}_bias',
                with_gradients(
                    lambda x, o, m, w, b, p=options: modulated_deform_conv2d(x, o, m, w, b, *p),
                    maps,
                    offset,
                    mask,
                    weight,
                    some_bias,
                ),
            )
    # DyHead's: offsets and masks of a larger map than the output
    inputs = draw(2, 4, 5, 4), draw(2, 18, 9, 7, scale=2), draw.uniform(2, 9, 9, 7), draw(6, 4, 3, 3), draw(6)
    yield 'modulated_larger_offset', with_gradients(lambda *x: modulated_deform_conv2d(*x, 1, 1), *inputs)


def masks(draw: Draw) -> Iterator[tuple[str, dict[str, Tensor]]]:
    from mmcv.ops.psa_mask import psa_mask

    for height, width in ((9, 11), (3, 5)):  # larger and smaller than twice the map
        maps = draw(2, height * width, 5, 4)
        for kind in (0, 1):
            yield (
                f'psa_mask{height}x{width}_{kind}',
                with_gradients(lambda x, k=kind, m=(height, width): psa_mask(x, k, m), maps),
            )


def results(device: str = 'cpu') -> dict[str, np.ndarray]:
    """Every tensor by ``case/name``, computed on a device."""
    found = {}
    for seed, cases in enumerate((suppression, rotated, regions, convolutions, masks)):
        for case, tensors in cases(Draw(seed, device)):
            found.update({f'{case}/{name}': tensor.cpu().numpy() for name, tensor in tensors.items()})
    return found


if __name__ == '__main__':
    from mmsoft.mmcv_ops import provider

    if provider()[0] != 'compiled':
        sys.exit(f'these are the operators of mmsoft ({provider()[0]}); the file is made from compiled ones.')
    np.savez_compressed(FILE, **results())
    print(f'{FILE}: {FILE.stat().st_size / 1024:.0f} KiB')
