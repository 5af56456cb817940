"""Softmax attention: torch's own, and how it is written into a program that is exported."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .dispatch import not_exported_with, operator

EXPORTED_WEIGHTS = 2**22  # of a picture's heads at once, 16 MiB in float32: runtimes that fuse nothing write them down


@operator(example=lambda random: (random(2, 3, 20, 8), random(2, 3, 5, 8), random(2, 3, 5, 8)))
def softmax_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """``softmax(d^(-1/2) q k' + bias) v`` of q (B, h, N, d), k (B, h, M, d), v (B, h, M, e) -> (B, h, N, e).

    All heads have one bias.
    """
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def _against_groups(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> str | None:
    return not_exported_with(q.shape[2], k.shape[2])


@softmax_attention.also('export', _against_groups)
def _softmax_attention_export(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Some heads at a time."""
    heads = q.shape[1]
    count = min(-(-heads * q.shape[2] * k.shape[2] // EXPORTED_WEIGHTS), heads)
    groups = zip(*(t.tensor_split(count, 1) for t in (q, k, v)), strict=True)
    return torch.cat([F.scaled_dot_product_attention(*group, attn_mask=bias) for group in groups], 1)
