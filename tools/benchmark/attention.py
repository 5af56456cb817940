"""Attention alone, as in Figure 1b of the paper: 12 layers, 384 wide, 12 heads, 49 landmarks, 784 * p tokens."""

from pathlib import Path

import torch
from torch import Tensor, nn

from mmsoft.layers import SoftmaxAttention
from mmsoft.models import ATTENTIONS, Place

from .cases import FUSED, Case, Work, as_task

DIM, HEADS, DEPTH = 384, 12, 12
# A window of 4 x 4 tokens a landmark: 49 of 28 x 28 tokens; larger grids keep at most 49.
PLACE = Place(DIM, HEADS, ratio=4, local_kernel=5, grid=(28, 28), layer=0, max_keys=None, landmarks={}, newton={})
ROOM = 0.8  # of the available memory may be taken by scores


class MaterialisedAttention(SoftmaxAttention):
    """Softmax attention that keeps its scores (B, h, N, N), as code without fused kernels does."""

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """x (B, N, C) -> (B, N, C)."""
        parts = self.q(x), *self.kv(x).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def build_layer(name: str) -> nn.Module:
    """Called as ``layer(x, grid)``; every attention but softmax with its usual options."""
    if name == 'softmax':
        return MaterialisedAttention(DIM, HEADS)
    return ATTENTIONS['softmax' if name == FUSED else name].build(PLACE)


class Layers(nn.Module):
    """Attention layers with residuals and nothing between them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(build_layer(name) for _ in range(DEPTH))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(DEPTH))

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """x (B, H * W, C) -> the same."""
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x), grid)
        return x


def build_attention(case: Case, device: str) -> Work:
    """All layers on one grid; raises MemoryError where scores would not fit."""
    if case.part == 'softmax' and device != 'meta':
        _check_room(case)
    model = Layers(case.part).to(device).train(case.task == 'train')

    def tokens(grid: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
        return torch.randn(case.batch, grid[0] * grid[1], DIM, device=device), grid

    return Work(model, tokens, as_task(case, lambda inputs: (model(*inputs),)))


def _check_room(case: Case) -> None:
    """Scores and their softmax; in training each layer keeps the latter, and the last needs both gradients."""
    matrices = DEPTH + 2 if case.task == 'train' else 2
    needed = matrices * case.batch * HEADS * case.tokens**2 * 4  # softmax runs in fp32 under autocast as well
    free = available_memory(case.device)
    if free is not None and needed > ROOM * free:
        raise MemoryError(
            f'skipped: softmax scores of {case.tokens} tokens need {needed / 2**30:.1f} GiB, which is more than '
            f'{ROOM:.0%} of the {free / 2**30:.1f} GiB available'
        )


def available_memory(device: str) -> int | None:
    """Bytes that are free; None where that is not known."""
    if device == 'cuda':
        return torch.cuda.mem_get_info()[0]
    info = Path('/proc/meminfo')
    lines = info.read_text().splitlines() if info.is_file() else []
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith('MemAvailable')]
    return kilobytes[0] * 1024 if kilobytes else None
