"""Landmarks (bottleneck tokens): a small set of queries that stands for the whole map."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops import average_windows, landmark_grid, scattered_indices, to_landmark_windows, to_map
from mmsoft.ops.checks import choose, pair, whole

from .window_conv import WindowConv

SAMPLINGS = ('conv', 'avg_pool', 'random', 'first')


class Landmarks(nn.Module):
    """Samples landmarks from the queries of every head (the paper's Table 10).

    ``conv`` learns a window of ``ratio`` (rows and columns, or one number for both; (1, r) for sequences),
    shared by the heads, and applies LayerNorm and GELU to its output; ``avg_pool`` averages the window;
    ``random`` and ``first`` pick as many tokens as there would be windows, anew at each training step (from
    torch's generator) and fixed by ``seed`` in evaluation, or in raster order. ``num_landmarks`` bounds the
    count (see ops.landmark_grid).
    """

    def __init__(
        self,
        head_dim: int,
        ratio: int | tuple[int, int],
        num_landmarks: int | None = 49,
        sampling: str = 'conv',
        seed: int = 0,
    ) -> None:
        super().__init__()
        choose('landmark_sampling', sampling, SAMPLINGS)
        if num_landmarks is not None:
            whole('num_landmarks (None means no bound)', num_landmarks)
        self.head_dim, self.num_landmarks = head_dim, num_landmarks
        self.ratio = pair('landmark window', ratio)
        self.sampling, self.seed = sampling, seed
        if sampling == 'conv':  # the others have no parameters
            self.conv = WindowConv(head_dim, head_dim, self.ratio, bias=False)
            self.norm = nn.LayerNorm(head_dim, eps=1e-5)

    def forward(self, q: Tensor, grid: tuple[int, int], scale: float = 1.0) -> Tensor:
        """q (B, H * W, h * d) on grid (H, W) -> landmarks (B, h, m, d) of ``scale * q``."""
        batch, _, channels = q.shape
        heads = channels // self.head_dim
        if self.sampling in ('random', 'first'):
            picked = self._pick(q, grid) * scale  # (B, m, h * d)
            return picked.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)
        windows = to_landmark_windows(to_map(q, grid), self.ratio, self.num_landmarks)
        windows = windows.reshape(batch * heads, self.head_dim, *windows.shape[-2:])
        if self.sampling == 'avg_pool':
            pooled = average_windows(windows, self.ratio).flatten(2).transpose(1, 2) * scale
        else:
            pooled = F.gelu(self.norm(self.conv(windows).flatten(2).transpose(1, 2) * scale))
        return pooled.unflatten(0, (batch, heads))

    def check_sequence(self) -> None:
        """Raise unless the window suits a sequence, which is a map of height 1."""
        if self.ratio[0] != 1:
            raise ValueError(
                f'a sequence takes a landmark window (1, r); this one is {self.ratio[0]} x {self.ratio[1]}'
            )

    def _pick(self, q: Tensor, grid: tuple[int, int]) -> Tensor:
        gh, gw = landmark_grid(grid[0], grid[1], self.ratio, self.num_landmarks)
        count = gh * gw
        if self.sampling == 'first':
            return q[:, :count]
        if self.training:
            indices = torch.rand(q.shape[1], device=q.device).topk(count).indices
        else:
            indices = scattered_indices(q.shape[1], count, self.seed, q.device)
        return q[:, indices]

    def extra_repr(self) -> str:
        return f'ratio={self.ratio}, num_landmarks={self.num_landmarks}, sampling={self.sampling}'
