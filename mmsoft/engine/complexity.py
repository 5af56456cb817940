"""Multiply-adds, counted in full as the operators run."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def _attention_flops(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *_, **__) -> int:
    """Fused softmax attention: query (B, h, N, d), key (B, h, M, d), value (B, h, M, e)."""
    *batch, queries, width = query
    return 2 * torch.Size(batch).numel() * queries * key[-2] * (width + value[-1])


def count_macs(model: nn.Module, *shape: int) -> int:
    """Multiply-adds of one forward pass on a zero input of this shape.

    The counter sits below autograd and sees every product, Newton's steps and fused attention
    included, where a counter of modules sees none of these.
    """
    device = next(model.parameters()).device
    mapping = {}
    if hasattr(torch.ops.aten, '_scaled_dot_product_flash_attention_for_cpu'):
        mapping[torch.ops.aten._scaled_dot_product_flash_attention_for_cpu] = _attention_flops
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=mapping) as counter:
            model(torch.zeros(*shape, device=device))
    finally:
        model.train(training)
    return counter.get_total_flops() // 2
