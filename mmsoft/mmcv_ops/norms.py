"""The parts of mmcv's SyncBatchNorm between which it shares sums with other processes; maps are (b, c, pixels)."""

from torch import Tensor

from mmsoft.mmcv_ops.tensors import wide


def _by_channel(x: Tensor) -> Tensor:
    return x[None, :, None]


def sync_bn_forward_mean(input: Tensor, mean: Tensor) -> None:
    mean.copy_(wide(input).mean((0, 2)))


def sync_bn_forward_var(input: Tensor, mean: Tensor, var: Tensor) -> None:
    var.copy_((wide(input) - _by_channel(mean)).square().mean((0, 2)))


def sync_bn_forward_output(
    input: Tensor,
    mean: Tensor,
    var: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    norm: Tensor,
    std: Tensor,
    output: Tensor,
    eps: float,
    momentum: float | Tensor,
    group_size: int,
) -> None:
    """Fills the normed map, the deviation and ``output``; moves the running values, the variance without its bias."""
    std.copy_((var + eps).sqrt())
    norm.copy_((wide(input) - _by_channel(mean)) / _by_channel(std))
    output.copy_(norm * _by_channel(weight) + _by_channel(bias))
    count = input.shape[0] * input.shape[2] * group_size
    running_mean.copy_(running_mean + (mean - running_mean) * momentum)
    running_var.copy_(running_var + (var * count / max(count - 1, 1) - running_var) * momentum)


def sync_bn_backward_param(grad_output: Tensor, norm: Tensor, grad_weight: Tensor, grad_bias: Tensor) -> None:
    grad_weight.copy_((wide(grad_output) * norm).sum((0, 2)))
    grad_bias.copy_(wide(grad_output).sum((0, 2)))


def sync_bn_backward_data(
    grad_output: Tensor,
    weight: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    norm: Tensor,
    std: Tensor,
    grad_input: Tensor,
) -> None:
    count = norm.shape[0] * norm.shape[2]
    mean = (_by_channel(grad_weight) * norm + _by_channel(grad_bias)) / count
    grad_input.copy_(_by_channel(weight / std) * (wide(grad_output) - mean))
