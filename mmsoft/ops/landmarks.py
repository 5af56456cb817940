"""Which grid of landmarks a map of tokens gets, and how the map is brought to it."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import check, compute_dtype
from .dispatch import is_exporting, is_symbol


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
    if is_symbol(height, width):
        raise ValueError(
            'height and width are left open in an export, where only averaged and learned landmarks, with '
            'num_landmarks set, can follow them: give the export numbers'
        )
    gh, gw = _whole_windows(height, width, window)
    if num_landmarks is None or gh * gw <= num_landmarks:
        return gh, gw
    return bounded_grid(height, width, num_landmarks)


def landmark_share(landmarks: Tensor, grid: tuple[int, int], window: tuple[int, int]) -> float | Tensor:
    """Landmarks (B, h, m, d) of a map on grid (H, W), over the whole windows that it has: 1 unless they are bounded.

    SOFT sums over tokens, and was trained with a window of them for each landmark. Where a bound leaves more tokens a
    landmark, the sum is that much larger; times this share it is as in training, at any size.
    """
    if not is_symbol(*grid):
        rows, columns = _whole_windows(*grid, window)
        return landmarks.shape[2] / (rows * columns)
    rows, columns = _whole_windows_in_graph(_sides_in_graph(grid, landmarks.device), window)
    return torch.ones_like(landmarks[0, 0, :, 0]).sum() / (rows * columns)


def to_landmark_windows(x: Tensor, window: tuple[int, int], num_landmarks: int | None) -> Tensor:
    """Prepare x (B, C, H, W) for a window (rh, rw) of that stride to give the landmark grid.

    Where the grid is bounded, x is averaged down to (gh * rh, gw * rw): the window sees the scale that it was
    trained on and every token contributes. A map smaller than one window is zero-padded at the right and bottom.
    """
    check(x.dim() == 4, 'to_landmark_windows takes a map (B, C, H, W)', x=x)
    height, width = x.shape[-2:]
    if is_symbol(height, width) and num_landmarks is not None:
        return _in_graph(x, window, num_landmarks, num_landmarks)
    gh, gw = landmark_grid(height, width, window, num_landmarks)
    if (gh, gw) != _whole_windows(height, width, window):
        return _average_to(x, (gh * window[0], gw * window[1]))
    if height < window[0] or width < window[1]:
        return F.pad(x, (0, max(window[1] - width, 0), 0, max(window[0] - height, 0)))
    return x


def average_beyond(x: Tensor, most: int, limit: int) -> Tensor:
    """Map x (B, C, H, W) as it is while H W <= ``most``, and averaged to the bounded grid of ``limit`` beyond that."""
    height, width = x.shape[-2:]
    if is_symbol(height, width):
        return _in_graph(x, (1, 1), most, limit)
    return x if height * width <= most else _average_to(x, bounded_grid(height, width, limit))


def _average_to(x: Tensor, grid: tuple[int, int]) -> Tensor:
    if not is_exporting():
        return F.adaptive_avg_pool2d(x, grid)
    # ONNX has such pooling where sides divide alone; elsewhere torch writes it as pieces that are gathered and masked
    rows, columns = (averages(count, side, x.device) for count, side in zip(grid, x.shape[-2:], strict=True))
    return weigh_sides(x, rows, columns)


def _in_graph(x: Tensor, window: tuple[int, int], most: int, limit: int) -> Tensor:
    """The windows of x (B, C, H, W), averaged if they are more than ``most``, for a graph in which H and W are symbols.

    Both ways are one product with a matrix a side, (gh * rh, H) and (gw * rw, W): of averages, or of ones that pick
    rows as they are, beyond the map zeros.
    """
    sides = _sides_in_graph(x.shape[-2:], x.device)
    whole = _whole_windows_in_graph(sides, window)
    bounded = whole[0] * whole[1] > most
    grid = zip(_bounded_grid_in_graph(sides, limit), whole, strict=True)
    rows, columns = (
        _sampling(torch.where(bounded, best, count) * step, side, size, bounded)
        for (best, count), step, side, size in zip(grid, window, sides, x.shape[-2:], strict=True)
    )
    return weigh_sides(x, rows, columns)


def _sides_in_graph(sizes: Sequence[int], device: torch.device) -> list[Tensor]:
    return [torch.full((), size, dtype=torch.int64, device=device) for size in sizes]


def _whole_windows_in_graph(sides: Sequence[Tensor], window: tuple[int, int]) -> list[Tensor]:
    """:func:`_whole_windows` of tensors."""
    return [torch.where(side < step, 1, side // step) for side, step in zip(sides, window, strict=True)]


def weigh_sides(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Map x (B, C, H, W), channels last, with matrices (H', H) and (W', W) -> (B, C, H', W'), without a copy of x."""
    dtype = compute_dtype(x)
    y = x.permute(0, 2, 3, 1).to(dtype)
    y = (rows.to(dtype) @ y.flatten(2)).unflatten(2, y.shape[2:])  # (B, H', W, C)
    return (columns.to(dtype) @ y).permute(0, 3, 1, 2).to(x.dtype)


def averages(count: int, size: int, device: torch.device) -> Tensor:
    """Matrix (count, size), each row the average that ``adaptive_avg_pool2d`` takes."""
    index = torch.arange(count, device=device)
    return _means(index * size // count, ((index + 1) * size + count - 1) // count, size)


def average_windows(x: Tensor, window: tuple[int, int]) -> Tensor:
    """x (B, C, H, W) -> (B, C, H // rh, W // rw); rows and columns that fill no window are left out."""
    if not is_symbol(*x.shape[-2:]):
        return F.avg_pool2d(x, window)
    # torch.export asks more of pooling than it can know
    weight = x.new_full((x.shape[1], 1, *window), 1 / math.prod(window))
    return F.conv2d(x, weight, stride=window, groups=x.shape[1])


def _bounded_grid_in_graph(sides: Sequence[Tensor], limit: int) -> tuple[Tensor, Tensor]:
    """:func:`bounded_grid` of tensors: over all grids, the largest min(gh W, gw H), and of these the least max."""
    grids = torch.tensor([(gh, gw) for gh in range(1, limit + 1) for gw in range(1, limit // gh + 1)])
    height, width = sides
    gh, gw = grids.to(height.device).unbind(1)
    a, b = gh * width, gw * height
    least, most = torch.minimum(a, b), torch.maximum(a, b)
    most = torch.where(least == least.max(), most, most.max() + 1)
    best = most == most.min()
    return torch.where(best, gh, 0).max(), torch.where(best, gw, 0).max()


def _sampling(count: Tensor, side: Tensor, size: int, bounded: Tensor) -> Tensor:
    """Matrix (count, size): averages as ``adaptive_avg_pool2d`` has them, or the first rows as they are."""
    length = count.item()
    torch._check(length >= 1)
    index = torch.arange(length, device=count.device)
    first = torch.where(bounded, index * side // count, index)
    end = torch.where(bounded, ((index + 1) * side + count - 1) // count, index + 1)
    return _means(first, end, size)


def _means(first: Tensor, end: Tensor, size: int) -> Tensor:
    """Matrix (count, size): row i averages from ``first[i]`` up to ``end[i]``, both (count,)."""
    first, end = first[:, None], end[:, None]
    place = torch.arange(size, device=first.device)
    return ((place >= first) & (place < end)) / (end - first)


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
