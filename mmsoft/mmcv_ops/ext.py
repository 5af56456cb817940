"""What ``mmcv._ext`` offers, made from torch and torchvision.

An operator that is missing here raises when it is called, so that ``mmcv.ops`` imports whole: every public name exists.
"""

from collections.abc import Callable
from typing import Any

from mmsoft.mmcv_ops import boxes, deformable, filters, losses, norms, regions, rotated
from mmsoft.mmcv_ops.tensors import REMEDY


def get_compiler_version() -> str:
    return 'none: mmsoft.mmcv_ops'


def get_compiling_cuda_version() -> str:
    return 'none: mmsoft.mmcv_ops'


OPERATORS: dict[str, Callable] = {
    operator.__name__: operator
    for operator in (
        get_compiler_version,
        get_compiling_cuda_version,
        boxes.nms,
        boxes.softnms,
        boxes.nms_match,
        boxes.line_nms_forward,
        rotated.box_iou_rotated,
        rotated.nms_rotated,
        regions.roi_align_forward,
        regions.roi_align_backward,
        regions.roi_pool_forward,
        regions.roi_pool_backward,
        regions.deform_roi_pool_forward,
        regions.deform_roi_pool_backward,
        losses.sigmoid_focal_loss_forward,
        losses.sigmoid_focal_loss_backward,
        losses.softmax_focal_loss_forward,
        losses.softmax_focal_loss_backward,
        deformable.deform_conv_forward,
        deformable.deform_conv_backward_input,
        deformable.deform_conv_backward_parameters,
        deformable.modulated_deform_conv_forward,
        deformable.modulated_deform_conv_backward,
        deformable.ms_deform_attn_forward,
        deformable.ms_deform_attn_backward,
        filters.carafe_forward,
        filters.carafe_backward,
        filters.carafe_naive_forward,
        filters.carafe_naive_backward,
        filters.masked_im2col_forward,
        filters.masked_col2im_forward,
        filters.psamask_forward,
        filters.psamask_backward,
        norms.sync_bn_forward_mean,
        norms.sync_bn_forward_var,
        norms.sync_bn_forward_output,
        norms.sync_bn_backward_param,
        norms.sync_bn_backward_data,
    )
}


def __getattr__(name: str) -> Any:
    if name.startswith('_'):
        raise AttributeError(name)
    return OPERATORS.get(name) or _left_out(name)


def _left_out(name: str) -> Callable:
    def operator(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f'mmcv operator {name!r} {REMEDY}')

    return operator
