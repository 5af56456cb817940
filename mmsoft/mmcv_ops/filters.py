"""Filters that differ from place to place: CARAFE, masked convolution, PSA masks."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from mmsoft.mmcv_ops.tensors import wide


def _taps(padded: Tensor, size: int, height: int, width: int) -> Iterator[Tensor]:
    """Views (..., height, width) of a map padded by ``size // 2``, one for each place of the kernel."""
    for y in range(size):
        for x in range(size):
            yield padded[..., y : y + height, x : x + width]


def carafe_forward(
    features: Tensor,
    masks: Tensor,
    rfeatures: Tensor,
    routput: Tensor,
    rmasks: Tensor,
    output: Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    """CARAFE; keeps the features in ``rfeatures``, which is what mmcv saves for backward."""
    rfeatures.copy_(features)
    carafe_naive_forward(features, masks, output, kernel_size, group_size, scale_factor)


def carafe_backward(
    grad_output: Tensor,
    rfeatures: Tensor,
    masks: Tensor,
    rgrad_output: Tensor,
    rgrad_input_hs: Tensor,
    rgrad_input: Tensor,
    rgrad_masks: Tensor,
    grad_input: Tensor,
    grad_masks: Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    carafe_naive_backward(grad_output, rfeatures, masks, grad_input, grad_masks, kernel_size, group_size, scale_factor)


def _blocks(x: Tensor, groups: int, height: int, width: int) -> Tensor:
    """(b, c, h * s, w * s) -> (b, groups, c / groups, h, s, w, s): each source pixel's s * s pixels."""
    size = x.shape[1] // groups, height, x.shape[2] // height, width, x.shape[3] // width
    return wide(x).view(len(x), groups, *size)


def carafe_naive_forward(
    features: Tensor, masks: Tensor, output: Tensor, kernel_size: int, group_size: int, scale_factor: int
) -> None:
    """Each pixel is a sum over the kernel around its source: features (b, c, h, w), masks (b, groups * k * k, h * s,
    w * s) -> ``output`` (b, c, h * s, w * s)."""
    height, width = features.shape[2:]
    padded = F.pad(wide(features), [kernel_size // 2] * 4).unflatten(1, (group_size, -1))
    weights = _blocks(masks, group_size, height, width)
    total = torch.zeros_like(_blocks(output, group_size, height, width))
    for i, tap in enumerate(_taps(padded, kernel_size, height, width)):
        total.addcmul_(tap[..., None, :, None], weights[:, :, i, None])
    output.copy_(total.view_as(output))


def carafe_naive_backward(
    grad_output: Tensor,
    features: Tensor,
    masks: Tensor,
    grad_input: Tensor,
    grad_masks: Tensor,
    kernel_size: int,
    group_size: int,
    scale_factor: int,
) -> None:
    height, width = features.shape[2:]
    border = kernel_size // 2
    padded = F.pad(wide(features), [border] * 4).unflatten(1, (group_size, -1))
    gradient = torch.zeros_like(padded)
    weights, grads = (_blocks(x, group_size, height, width) for x in (masks, grad_output))
    of_masks = torch.empty_like(weights)
    taps = zip(_taps(padded, kernel_size, height, width), _taps(gradient, kernel_size, height, width), strict=True)
    for i, (tap, of_tap) in enumerate(taps):
        of_masks[:, :, i] = (grads * tap[..., None, :, None]).sum(2)
        of_tap += (grads * weights[:, :, i, None]).sum((-3, -1))
    grad_masks.copy_(of_masks.view_as(masks))
    grad_input.copy_(gradient[..., border : border + height, border : border + width].flatten(1, 2))


def masked_im2col_forward(
    features: Tensor,
    mask_h_idx: Tensor,
    mask_w_idx: Tensor,
    data_col: Tensor,
    kernel_h: int,
    kernel_w: int,
    pad_h: int,
    pad_w: int,
) -> None:
    """Fills ``data_col`` (c * kernel_h * kernel_w, n) with the windows of one image (1, c, h, w) at n places."""
    windows = F.pad(features[0], (pad_w, pad_w, pad_h, pad_h)).unfold(1, kernel_h, 1).unfold(2, kernel_w, 1)
    data_col.copy_(windows[:, mask_h_idx, mask_w_idx].permute(0, 2, 3, 1).reshape_as(data_col))


def masked_col2im_forward(
    masked_output: Tensor,
    mask_h_idx: Tensor,
    mask_w_idx: Tensor,
    output: Tensor,
    height: int,
    width: int,
    channels: int,
) -> None:
    """Puts columns (channels, n) at n places of ``output`` (1, channels, height, width)."""
    output[0, :, mask_h_idx, mask_w_idx] = masked_output.to(output.dtype)  # autocast makes it a half


def _around(places: int, mask: int, half: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For a pixel (row) and another (column) of one axis: the second's place in the mask around the first; whether it
    has one."""
    steps = torch.arange(places, device=device)
    index = steps[None] - steps[:, None] + half
    return index.clamp(0, mask - 1), (index >= 0) & (index < mask)


def psamask_forward(
    input: Tensor,
    output: Tensor,
    psa_type: int,
    num_: int,
    h_feature: int,
    w_feature: int,
    h_mask: int,
    w_mask: int,
    half_h_mask: int,
    half_w_mask: int,
) -> None:
    """Masks around each pixel (b, h_mask * w_mask, h, w) -> weights of all pixels, 0 beyond the mask: of the pixels
    that one collects from (type 0: ``output`` (b, from, h, w)) or distributes to (type 1: (b, h * w, *to))."""
    rows, has_row = _around(h_feature, h_mask, half_h_mask, input.device)
    columns, has_column = _around(w_feature, w_mask, half_w_mask, input.device)
    masks = input.view(num_, h_mask, w_mask, h_feature, w_feature)
    weights = output.view(num_, h_feature, w_feature, h_feature, w_feature)
    for y in range(h_feature):
        strip = masks[:, :, :, y].index_select(1, rows[y]).transpose(2, 3)  # (b, other y, x, w_mask)
        strip = strip.gather(3, columns.expand(num_, h_feature, w_feature, w_feature))  # (b, other y, x, other x)
        strip = strip.masked_fill(~(has_row[y, :, None, None] & has_column), 0)
        if psa_type == 0:
            weights[:, :, :, y] = strip.transpose(2, 3)
        else:
            weights[:, y] = strip.transpose(1, 2)


def psamask_backward(
    grad_output: Tensor,
    grad_input: Tensor,
    psa_type: int,
    num_: int,
    h_feature: int,
    w_feature: int,
    h_mask: int,
    w_mask: int,
    half_h_mask: int,
    half_w_mask: int,
) -> None:
    rows, has_row = _around(h_feature, h_mask, half_h_mask, grad_output.device)
    columns, has_column = _around(w_feature, w_mask, half_w_mask, grad_output.device)
    weights = grad_output.reshape(num_, h_feature, w_feature, h_feature, w_feature)
    gradient = grad_input.view(num_, h_mask, w_mask, h_feature, w_feature)
    for y in range(h_feature):
        strip = weights[:, :, :, y].transpose(2, 3) if psa_type == 0 else weights[:, y].transpose(1, 2)
        strip = strip.masked_fill(~(has_row[y, :, None, None] & has_column), 0)  # (b, other y, x, other x)
        of_columns = strip.new_zeros(num_, h_feature, w_feature, w_mask)
        of_columns.scatter_add_(3, columns.expand_as(strip), strip)
        gradient[:, :, :, y].index_add_(1, rows[y], of_columns.transpose(2, 3).to(gradient.dtype))
