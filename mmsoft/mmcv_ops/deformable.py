"""Convolutions and attention whose sampling points are moved by offsets."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mmsoft.mmcv_ops.tensors import fill, wide

_ops = torch.ops.torchvision


def _tensors(input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, bias: Tensor | None) -> list[Tensor]:
    """As torchvision takes them: (b, 1) in place of no mask, zeros in place of no bias.

    An offset that is not a number leads out of the map, where mmcv finds zeros; torchvision would read any memory.
    """
    offset = offset.nan_to_num(nan=torch.finfo(offset.dtype).max)
    mask = input.new_zeros(len(input), 1) if mask is None else mask
    bias = input.new_zeros(len(weight)) if bias is None else bias
    return [wide(x) for x in (input, weight, offset, mask, bias)]


def _convolve(
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, bias: Tensor | None, sizes: list[int]
) -> Tensor:
    return _ops.deform_conv2d(*_tensors(input, weight, offset, mask, bias), *sizes, mask is not None)


def _gradients(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    sizes: list[int],
) -> tuple[Tensor, ...]:
    """Of input, weight, offset, mask and bias."""
    tensors = _tensors(input, weight, offset, mask, bias)
    return _ops._deform_conv2d_backward(wide(grad), *tensors, *sizes, mask is not None)


# The sizes by which mmcv calls them, as torchvision orders them.
_DCN = ('dH', 'dW', 'padH', 'padW', 'dilationH', 'dilationW', 'group', 'deformable_group')
_DCN_V2 = ('stride_h', 'stride_w', 'pad_h', 'pad_w', 'dilation_h', 'dilation_w', 'group', 'deformable_group')


def _in_order(sizes: dict[str, int], names: tuple[str, ...]) -> list[int]:
    return [sizes[name] for name in names]


def deform_conv_forward(
    input: Tensor, weight: Tensor, offset: Tensor, output: Tensor, columns: Tensor, ones: Tensor, **sizes: int
) -> None:
    """DCN: (b, c, h, w), offsets (b, 2 * deformable_group * kH * kW, h', w'), y before x -> ``output``."""
    fill(output, _convolve(input, weight, offset, None, None, _in_order(sizes, _DCN)))


def deform_conv_backward_input(
    input: Tensor,
    offset: Tensor,
    grad_output: Tensor,
    grad_input: Tensor,
    grad_offset: Tensor,
    weight: Tensor,
    columns: Tensor,
    **sizes: int,
) -> None:
    """Fills ``grad_input`` and ``grad_offset``; leaves the weight's gradient in ``columns``, mmcv's scratch.

    torchvision computes all gradients at once, and mmcv gives the same scratch to the call for the weight.
    """
    gradients = _gradients(grad_output, input, weight, offset, None, None, _in_order(sizes, _DCN))
    fill(grad_input, gradients[0])
    fill(grad_offset, gradients[2])
    columns.set_(gradients[1].to(columns.dtype))


def deform_conv_backward_parameters(
    input: Tensor,
    offset: Tensor,
    grad_output: Tensor,
    grad_weight: Tensor,
    columns: Tensor,
    ones: Tensor,
    scale: float,
    **sizes: int,
) -> None:
    """Adds to ``grad_weight`` what ``deform_conv_backward_input`` left, or computes it where that was not called."""
    if columns.shape != grad_weight.shape:
        any_weight = torch.zeros_like(grad_weight)  # its gradient does not depend on it
        columns = _gradients(grad_output, input, any_weight, offset, None, None, _in_order(sizes, _DCN))[1]
    grad_weight.add_(columns.to(grad_weight.dtype), alpha=scale)


def _as_compiled_reads(x: Tensor, output: Tensor, taps: int) -> Tensor:
    """The first values of each image as (b, taps, *output's size): DyHead hands over offsets and masks of a larger
    level, which compiled mmcv reads so."""
    size = (taps, *output.shape[2:])
    if x.shape[1:] == size or x[0].numel() < math.prod(size):  # of too few torchvision says so
        return x
    return x.flatten(1)[:, : math.prod(size)].unflatten(1, size)


def _taps(sizes: dict[str, int]) -> int:
    """Samples of one output pixel."""
    return sizes['deformable_group'] * sizes['kernel_h'] * sizes['kernel_w']


def modulated_deform_conv_forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    output: Tensor,
    columns: Tensor,
    with_bias: bool,
    **sizes: int,
) -> None:
    """DCNv2: as DCN, each sample times ``mask`` (b, deformable_group * kernel_h * kernel_w, h', w')."""
    offset = _as_compiled_reads(offset, output, 2 * _taps(sizes))
    mask = _as_compiled_reads(mask, output, _taps(sizes))
    bias = bias if with_bias else None
    fill(output, _convolve(input, weight, offset, mask, bias, _in_order(sizes, _DCN_V2)))


def modulated_deform_conv_backward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    columns: Tensor,
    grad_input: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    grad_offset: Tensor,
    grad_mask: Tensor,
    grad_output: Tensor,
    with_bias: bool,
    **sizes: int,
) -> None:
    offset = _as_compiled_reads(offset, grad_output, 2 * _taps(sizes))
    mask = _as_compiled_reads(mask, grad_output, _taps(sizes))
    bias = bias if with_bias else None
    gradients = _gradients(grad_output, input, weight, offset, mask, bias, _in_order(sizes, _DCN_V2))
    outputs = (grad_input, grad_weight, grad_offset, grad_mask, grad_bias)
    for output, gradient in zip(outputs[: 5 if with_bias else 4], gradients, strict=False):
        if output.shape == gradient.shape:
            fill(output, gradient)
        else:  # the other values have no part in the result
            whole = gradient.new_zeros(output.shape)
            whole.flatten(1)[:, : gradient[0].numel()] = gradient.flatten(1)
            output.copy_(whole)


def _attend(value: Tensor, shapes: list[list[int]], locations: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of samples: ``value`` (b, keys, h, d), ``locations`` (b, q, h, levels, points, 2), x first, in 0
    to 1 of each level, ``weights`` (b, q, h, levels, points) -> (b, q, h * d)."""
    batch, _, heads, width = value.shape
    levels = value.split([height * width for height, width in shapes], dim=1)
    total = 0
    for i, ((height, columns), level) in enumerate(zip(shapes, levels, strict=True)):
        maps = level.permute(0, 2, 3, 1).reshape(batch * heads, width, height, columns)
        points = (2 * locations[:, :, :, i] - 1).transpose(1, 2).flatten(0, 1)  # (b * h, q, points, 2)
        samples = F.grid_sample(maps, points, align_corners=False)  # (b * h, d, q, points)
        total = total + (samples * weights[:, :, :, i].transpose(1, 2).flatten(0, 1)[:, None]).sum(-1)
    return total.view(batch, heads * width, -1).transpose(1, 2)


def ms_deform_attn_forward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    tensors = map(wide, (value, sampling_locations, attention_weights))
    value_, locations, weights = tensors
    return _attend(value_, value_spatial_shapes.tolist(), locations, weights).contiguous().to(value.dtype)


def ms_deform_attn_backward(
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    grad_output: Tensor,
    grad_value: Tensor,
    grad_sampling_loc: Tensor,
    grad_attn_weight: Tensor,
    im2col_step: int,
) -> None:
    """Fills the three gradients, by computing the samples again."""
    tensors = [wide(x).detach().requires_grad_() for x in (value, sampling_locations, attention_weights)]
    with torch.enable_grad():
        output = _attend(tensors[0], value_spatial_shapes.tolist(), *tensors[1:])
    gradients = torch.autograd.grad(output, tensors, wide(grad_output))
    for filled, gradient in zip((grad_value, grad_sampling_loc, grad_attn_weight), gradients, strict=True):
        fill(filled, gradient)
