"""Which grid of landmarks a map of tokens gets, and how the map is brought to it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import check


def bounded_grid(height: int, width: int, limit: int) -> tuple[int, int]:
    """The grid (gh, gw) with gh * gw <= limit that samples an (H, W) map most evenly.

    It maximises min(gh / H, gw / W); ties go to the gh / gw nearest to H / W on a log scale, then to
    the larger grid. 200 x 336 tokens with limit 49 give 5 x 9. Plain integer loops, which
    torch.compile can follow.
    """
    # gh / H rises with gh and (limit // gh) / W falls: the best gh is the last before they cross, or the next
    before = 0
    while (before + 1) * width <= (limit // (before + 1)) * height:
        before += 1
    candidates = []
    for gh in (before, before + 1):
        if 1 <= gh <= limit:
            gw = limit // gh
            # either side may shrink to the map's own shape without making the sampling less even
            candidates += [(gh, side) for side in (gw, gh * width // height, -(-gh * width // height))]
            candidates += [(side, gw) for side in (limit // gw, gw * height // width, -(-gw * height // width))]
    best, best_quality = (1, 1), (0, 0.0, 0)  # any grid is denser than 0
    for gh, gw in candidates:
        if gh >= 1 and gw >= 1 and gh * gw <= limit:
            # min(gh / H, gw / W) times H W, exact in integers
            evenness, likeness = min(gh * width, gw * height), -abs(math.log((gh * width) / (gw * height)))
            quality = (evenness, likeness, gh * gw)
            if quality > best_quality:
                best, best_quality = (gh, gw), quality
    return best


def landmark_grid(height: int, width: int, window: tuple[int, int], num_landmarks: int | None) -> tuple[int, int]:
    """Landmarks (gh, gw) of an (H, W) map whose landmark window is (rh, rw).

    One for each whole window, as published, while these are at most ``num_landmarks``; the
    bounded grid beyond that. ``num_landmarks=None`` never bounds: the count grows with the image.
    """
    gh, gw = _whole_windows(height, width, window)
    if num_landmarks is None or gh * gw <= num_landmarks:
        return gh, gw
    return bounded_grid(height, width, num_landmarks)


def to_landmark_windows(x: Tensor, window: tuple[int, int], num_landmarks: int | None) -> Tensor:
    """Prepare x (B, C, H, W) for a window (rh, rw) of that stride to give the landmark grid.

    Where the grid is bounded, x is averaged down to (gh * rh, gw * rw): the window sees the scale that it was
    trained on and every token contributes. A map smaller than one window is zero-padded at the right and bottom.
    """
    check(x.dim() == 4, 'to_landmark_windows takes a map (B, C, H, W)', x=x)
    height, width = x.shape[-2:]
    gh, gw = landmark_grid(height, width, window, num_landmarks)
    if (gh, gw) != _whole_windows(height, width, window):
        return F.adaptive_avg_pool2d(x, (gh * window[0], gw * window[1]))
    if height < window[0] or width < window[1]:
        return F.pad(x, (0, max(window[1] - width, 0), 0, max(window[0] - height, 0)))
    return x


def _whole_windows(height: int, width: int, window: tuple[int, int]) -> tuple[int, int]:
    return max(height // window[0], 1), max(width // window[1], 1)


def scattered_indices(count: int, picks: int, seed: int, device: torch.device) -> Tensor:
    """``picks`` distinct indices below ``count``, scattered by an integer hash of the seed.

    Tensor arithmetic only: the same on every device, no generator, no transfer, no synchronisation.
    """
    state = torch.arange(count, device=device) + (seed * 0x9E3779B1 & 0xFFFFFFFF)
    for multiplier in (0x45D9F3B, 0x119DE1F3):  # 29 bits at most: the product stays within int64
        state = (state ^ (state >> 16)) * multiplier & 0xFFFFFFFF
    return (state ^ (state >> 16)).topk(picks).indices
