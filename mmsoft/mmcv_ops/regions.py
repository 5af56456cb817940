"""Features of regions ``rois`` (n, 5): number of the image, then x1, y1, x2, y2 in its pixels."""

from collections.abc import Iterator

import torch
from torch import Tensor

from mmsoft.mmcv_ops.tensors import CHUNK, REMEDY, fill, wide

_ops = torch.ops.torchvision


def _averaging(pool_mode: int) -> None:
    if pool_mode != 1:
        raise NotImplementedError(f"RoIAlign with pool_mode='max' {REMEDY}")


def _numbers(rois: Tensor, dtype: torch.dtype) -> Tensor:
    """Coordinates that are not numbers become 0, and endless ones finite: torchvision would read any memory."""
    return rois.to(dtype).nan_to_num(nan=0.0, posinf=1e30, neginf=-1e30)


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """(b, c, h, w) -> ``output`` (n, c, aligned_height, aligned_width)."""
    _averaging(pool_mode)
    input = wide(input)
    fill(
        output,
        _ops.roi_align(
            input, _numbers(rois, input.dtype), spatial_scale, aligned_height, aligned_width, sampling_ratio, aligned
        ),
    )


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """Fills ``grad_input`` (b, c, h, w)."""
    grad_output = wide(grad_output)
    gradient = _ops._roi_align_backward(
        grad_output,
        _numbers(rois, grad_output.dtype),
        spatial_scale,
        aligned_height,
        aligned_width,
        *grad_input.shape,
        sampling_ratio,
        aligned,
    )
    fill(grad_input, gradient)


def _edges(start: Tensor, size: Tensor, bins: int, limit: int) -> tuple[Tensor, Tensor]:
    """First pixel of each bin and the one behind its last, (n, bins) each: bins overlap where they share a pixel."""
    places = torch.arange(bins, device=start.device)
    low = (places * (size / bins)[:, None] + start[:, None]).floor()
    high = ((places + 1) * (size / bins)[:, None] + start[:, None]).ceil()
    return low.clamp(0, limit).long(), high.clamp(0, limit).long()


def roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Maxima of bins (n, c, pooled_height, pooled_width), 0 in empty ones, and their places in the map (-1 there).

    mmcv's bins differ from torchvision's: corners are not rounded, and the last pixel counts whole.
    """
    height, width = input.shape[2:]
    start, end = wide(rois[:, 1:3]) * spatial_scale, (wide(rois[:, 3:5]) + 1) * spatial_scale
    size = end - start
    top, bottom = _edges(start[:, 1], size[:, 1], pooled_height, height)
    left, right = _edges(start[:, 0], size[:, 0], pooled_width, width)
    for i, image in enumerate(rois[:, 0].long().tolist()):
        if (size[i] <= 0).any():
            argmax[i] = -1
            continue
        for row, (y1, y2) in enumerate(zip(top[i].tolist(), bottom[i].tolist(), strict=True)):
            for column, (x1, x2) in enumerate(zip(left[i].tolist(), right[i].tolist(), strict=True)):
                if y1 >= y2 or x1 >= x2:
                    argmax[i, :, row, column] = -1
                    continue
                best, place = input[image, :, y1:y2, x1:x2].flatten(1).max(dim=1)
                output[i, :, row, column] = best
                argmax[i, :, row, column] = (y1 + place // (x2 - x1)) * width + x1 + place % (x2 - x1)


def roi_pool_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax: Tensor,
    grad_input: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """Adds each bin's gradient where its maximum was found."""
    gradient = torch.zeros_like(grad_input, dtype=wide(grad_output).dtype)
    places = argmax.flatten(2).long()
    values = wide(grad_output).flatten(2) * (places >= 0)
    images = rois[:, 0].long()[:, None, None].expand_as(places)
    channels = torch.arange(places.shape[1], device=places.device)[None, :, None].expand_as(places)
    gradient.flatten(2).index_put_((images, channels, places.clamp(min=0)), values, accumulate=True)
    grad_input.copy_(gradient)


def _bilinear(input: Tensor, images: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Values (c, n, s) of maps (b, c, h, w) at points (n, s): 0 from a pixel outside, before it the border's."""
    height, width = input.shape[2:]
    outside = (y < -1) | (y > height) | (x < -1) | (x > width)
    y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
    top, left = y.detach().floor().long(), x.detach().floor().long()
    bottom, right = (top + 1).clamp(max=height - 1), (left + 1).clamp(max=width - 1)
    dy, dx = y - top, x - left
    maps, images = input.transpose(0, 1), images[:, None]
    value = (
        maps[:, images, top, left] * ((1 - dy) * (1 - dx))
        + maps[:, images, top, right] * ((1 - dy) * dx)
        + maps[:, images, bottom, left] * (dy * (1 - dx))
        + maps[:, images, bottom, right] * (dy * dx)
    )
    return value.masked_fill(outside, 0)


def _pool_by_offsets(
    input: Tensor,
    rois: Tensor,
    offset: Tensor,
    bins: tuple[int, int],
    grid: tuple[int, int],
    scale: float,
    gamma: float,
) -> Tensor:
    """Means of ``grid`` samples a bin (n, c, *bins), each bin moved by ``gamma`` times the region's size."""
    start, end = rois[:, 1:3] * scale - 0.5, rois[:, 3:5] * scale - 0.5
    points = []
    for axis, (side, length, samples) in enumerate(((1, bins[0], grid[0]), (0, bins[1], grid[1]))):
        size = (end - start)[:, side]
        steps = (torch.arange(length * samples, device=rois.device) + 0.5) / samples  # in bins
        places = start[:, side, None] + steps * (size / length)[:, None]
        shape = (-1, length, 1, samples, 1) if axis == 0 else (-1, 1, length, 1, samples)
        places = places.view(-1, length, samples).view(shape)
        if offset.numel():
            places = places + gamma * size.view(-1, 1, 1, 1, 1) * offset[:, side][..., None, None]
        points.append(places.expand(-1, *bins, *grid).flatten(1))
    values = _bilinear(input, rois[:, 0].long(), *points)
    return values.unflatten(-1, (*bins, grid[0] * grid[1])).mean(-1).transpose(0, 1)


def _alike(rois: Tensor, channels: int, bins: tuple[int, int], scale: float, ratio: int) -> Iterator[tuple]:
    """Rows of regions that take the same number of samples a bin, in parts that fit in memory, and that number."""
    sides = ((rois[:, [4, 3]] - rois[:, [2, 1]]) * scale / rois.new_tensor(bins)).ceil().int()
    grids = torch.full_like(sides, ratio) if ratio > 0 else sides
    for grid in torch.unique(grids, dim=0).tolist():
        if min(grid) > 0:  # no samples: the output stays 0
            rows = (grids == grids.new_tensor(grid)).all(dim=1).nonzero().flatten()
            yield from (
                (part, tuple(grid))
                for part in rows.split(max(1, CHUNK // (channels * bins[0] * bins[1] * grid[0] * grid[1])))
            )


def deform_roi_pool_forward(
    input: Tensor,
    rois: Tensor,
    offset: Tensor,
    output: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    gamma: float,
) -> None:
    """RoIAlign whose bins are moved by ``offset`` (n, 2, pooled_height, pooled_width), x first; () is none."""
    bins = pooled_height, pooled_width
    wide_input, wide_rois, wide_offset = wide(input), wide(rois), wide(offset)
    for rows, grid in _alike(wide_rois, input.shape[1], bins, spatial_scale, sampling_ratio):
        moves = wide_offset[rows] if offset.numel() else wide_offset
        output[rows] = _pool_by_offsets(wide_input, wide_rois[rows], moves, bins, grid, spatial_scale, gamma).to(output)


def deform_roi_pool_backward(
    grad_output: Tensor,
    input: Tensor,
    rois: Tensor,
    offset: Tensor,
    grad_input: Tensor,
    grad_offset: Tensor,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    gamma: float,
) -> None:
    """Fills ``grad_input`` and, where there are offsets, ``grad_offset``, by computing the samples again."""
    bins = pooled_height, pooled_width
    wide_input, wide_rois = wide(input).detach().requires_grad_(), wide(rois)
    total = torch.zeros_like(wide_input)
    for rows, grid in _alike(wide_rois, input.shape[1], bins, spatial_scale, sampling_ratio):
        moves = wide(offset[rows] if offset.numel() else offset).detach().requires_grad_()
        with torch.enable_grad():
            pooled = _pool_by_offsets(wide_input, wide_rois[rows], moves, bins, grid, spatial_scale, gamma)
        wanted = (wide_input, moves) if offset.numel() else (wide_input,)
        gradients = torch.autograd.grad(pooled, wanted, wide(grad_output[rows]))
        total += gradients[0]
        if offset.numel():
            grad_offset[rows] = gradients[1].to(grad_offset)
    grad_input.copy_(total)
