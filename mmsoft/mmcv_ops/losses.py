"""Focal losses by element, and their gradients."""

import torch
from torch import Tensor

from mmsoft.mmcv_ops.tensors import wide


def _log(p: Tensor) -> Tensor:
    return p.clamp(min=torch.finfo(torch.float32).tiny).log()


def _weigh(values: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    """Rows times the weight of their class; none where ``weight`` is () or the target is no class (background)."""
    if not weight.numel():
        return values
    known = (target >= 0) & (target < len(weight))
    factor = torch.where(known, wide(weight)[target.clamp(0, len(weight) - 1)], 1)
    return values * factor.view(-1, *[1] * (values.dim() - 1))


def _is_class(input: Tensor, target: Tensor) -> Tensor:
    return target[:, None] == torch.arange(input.shape[1], device=input.device)


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Logits (n, classes) -> losses of the same shape; a target outside of the classes is background."""
    p = wide(input).sigmoid()
    positive = -alpha * (1 - p) ** gamma * _log(p)
    negative = -(1 - alpha) * p**gamma * _log(1 - p)
    output.copy_(_weigh(torch.where(_is_class(input, target), positive, negative), weight, target))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    p = wide(input).sigmoid()
    positive = -alpha * (1 - p) ** gamma * (1 - p - gamma * p * _log(p))
    negative = -(1 - alpha) * p**gamma * (gamma * (1 - p) * _log(1 - p) - p)
    grad_input.copy_(_weigh(torch.where(_is_class(input, target), positive, negative), weight, target))


def softmax_focal_loss_forward(
    softmax: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Probabilities (n, classes) -> losses (n,); a negative target costs nothing."""
    p = wide(softmax).gather(1, target.clamp(min=0)[:, None])[:, 0]
    loss = -alpha * (1 - p) ** gamma * _log(p)
    output.copy_(_weigh(loss * (target >= 0), weight, target))


def softmax_focal_loss_backward(
    softmax: Tensor, target: Tensor, weight: Tensor, buff: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Fills ``grad_input`` (n, classes), the gradient of the logits; ``buff`` (n,) is scratch."""
    p = wide(softmax).gather(1, target.clamp(min=0)[:, None])[:, 0]
    rest = 1 - p
    # where p is 1 its logarithm is 0, and so is the first term, also for a gamma below 1
    falling = rest.clamp(min=torch.finfo(torch.float32).tiny) ** (gamma - 1) * p * _log(p)
    slope = alpha * (gamma * falling - rest**gamma)
    slope = _weigh(slope * (target >= 0), weight, target)
    grad_input.copy_(slope[:, None] * (_is_class(softmax, target).to(slope) - wide(softmax)))
