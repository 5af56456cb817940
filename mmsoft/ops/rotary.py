"""Linear attention with queries and keys that positions turn, and keys that may differ in weight.

Han et al., "Demystify Mamba in Vision: A Linear Attention Perspective", NeurIPS 2024 (MILA);
Fan et al., "Breaking the Low-Rank Dilemma of Linear Attention", CVPR 2025 (RALA).
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from .checks import check, compute_dtype, saturating_cast
from .dispatch import eager_cpu, no_autocast, no_triton, not_exported, operator

BASE = 10000.0  # of the frequencies
EPSILON = 1e-6  # added to a query's sum of weights
# On a CPU slices of the map have this many values (2 MiB in float32): what is made of them stays in its cache.
SLICE = 2**19


def position_frequencies(count: int, endpoint: bool, device: torch.device | None = None) -> Tensor:
    """(count,) powers of BASE that fall from 1: to 1 / BASE with ``endpoint``, otherwise to the step before it."""
    steps = torch.arange(count, device=device, dtype=torch.float32) / max(count - endpoint, 1)
    return torch.pow(BASE, -steps)


def position_angles(
    grid: tuple[int, int], count: int, endpoint: bool, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Angles of rows (H, count) and of columns (W, count), position times frequency, in float32 always."""
    frequencies = position_frequencies(count, endpoint, device)
    rows, columns = (torch.arange(side, device=device, dtype=torch.float32)[:, None] * frequencies for side in grid)
    return rows, columns


def positive(x: Tensor) -> Tensor:
    """``phi(x) = elu(x) + 1`` without its cancellation: never 0 in float32 above -103. At 0 its slope is 1."""
    return x.clamp(max=0).exp() + x.relu()  # at 0, unlike a second clamp, relu has slope 0


def rotate_reference(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Slow reference of :func:`rotate` in float64: one pair of channels after the other, each in its place."""
    x, count = x.double(), rows.shape[1]
    tokens = x.transpose(1, 2).flatten(2)  # (B, N, C)
    leading = x.shape[2] - _tokens(rows, columns)
    y = tokens.clone()
    for pair in range(tokens.shape[2] // 2):
        axis, number = divmod(pair % (2 * count), count)
        angle = columns[:, number].repeat(len(rows)) if axis else rows[:, number].repeat_interleave(len(columns))
        turn = torch.polar(torch.ones_like(angle, dtype=torch.float64), angle.double())
        turned = torch.complex(tokens[:, leading:, 2 * pair], tokens[:, leading:, 2 * pair + 1]) * turn
        y[:, leading:, 2 * pair], y[:, leading:, 2 * pair + 1] = turned.real, turned.imag
    y = y.unflatten(2, (x.shape[1], -1)).transpose(1, 2)
    return torch.cat((y[..., 0::2], y[..., 1::2]), -1)


def _example(random):
    heads = [random(2, 2, 7, 4) for _ in range(3)]
    return *heads, random(2, 1), random(3, 1), True


@operator(rotate_reference, example=lambda random: (random(2, 2, 7, 4), random(2, 1), random(3, 1)))
def rotate(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Turn neighbouring channels (a, b) of x (B, h, T + H * W, d) by the angles of their token's row or column.

    rows (H, K), columns (W, K): of every 4 K channels, counted through all heads, the first half turns with the row,
    the last with the column. T leading tokens do not turn. In each head all first channels of pairs come before all
    second ones in the result, which products of queries and keys do not see. In float32 or better.
    """
    a, b = _pairs(x.to(compute_dtype(x)), rows).unbind(-1)  # (B, N, repeats, 2 K) each
    (height, count), width = rows.shape, columns.shape[0]
    angles = torch.cat((rows[:, None].expand(-1, width, -1), columns.expand(height, -1, -1)), -1).flatten(0, 1)
    cos, sin = angles.cos(), angles.sin()  # (H * W, 2 K)
    leading = x.shape[2] - height * width
    if leading:
        cos = torch.cat((cos.new_ones(leading, 2 * count), cos))
        sin = torch.cat((sin.new_zeros(leading, 2 * count), sin))
    return _to_heads(_turn(a, b, cos[:, None], sin[:, None]), x.shape[1])


@rotate.also('export', not_exported)
def _rotate_export(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Axis by axis: runtimes would compute the cosines of all tokens when they load a file, and keep them by block."""
    leading = x.shape[2] - _tokens(rows, columns)
    pairs = _pairs(x.to(compute_dtype(x)), rows)
    axes = pairs[:, leading:].unflatten(1, (rows.shape[0], -1)).unflatten(-2, (2, -1)).unbind(-3)
    turned = []
    for pair, angles in zip(axes, (rows[:, None, None], columns[:, None]), strict=True):
        a, b = pair.unbind(-1)
        turned.append(_turn(a, b, angles.cos(), angles.sin()))  # (B, H, W, repeats, K) each
    parts = [torch.cat(part, -1).flatten(1, 2) for part in zip(*turned, strict=True)]
    if leading:
        parts = [torch.cat(part, 1) for part in zip(pairs[:, :leading].unbind(-1), parts, strict=True)]
    return _to_heads(parts, x.shape[1])


def _turn(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos.to(a.dtype), sin.to(a.dtype)
    return a * cos - b * sin, a * sin + b * cos


def _to_heads(parts: Iterable[Tensor], heads: int) -> Tensor:
    """First and second channels of pairs, (B, N, repeats, 2 K) each -> (B, h, N, d)."""
    return torch.cat([part.flatten(2).unflatten(2, (heads, -1)) for part in parts], -1).transpose(1, 2)


def _against_triton(x: Tensor, rows: Tensor, columns: Tensor) -> str | None:
    if reason := no_triton(x, rows, columns):
        return reason
    if rows.requires_grad or columns.requires_grad:
        return 'angles are learned'
    if any(angles.dtype != torch.float32 or not angles.is_contiguous() for angles in (rows, columns)):
        return 'angles are not float32 as position_angles has them'
    if x.shape[-1] % 2 or x.shape[1] * x.shape[-1] % (4 * rows.shape[1]) or x.shape[2] < _tokens(rows, columns):
        return 'heads or tokens do not fit the angles'
    return None if x.numel() and x.shape[-1] <= 512 else 'there are no tokens, or more than 512 channels in a head'


@rotate.also('triton', _against_triton)
def _rotate_triton(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    from .triton import rotary

    return rotary.turn(x, rows, columns)


def _tokens(rows: Tensor, columns: Tensor) -> int:
    """Of the grid; a symbol in graphs of any size, which ``len`` would make a number."""
    return rows.shape[0] * columns.shape[0]


def _pairs(x: Tensor, rows: Tensor) -> Tensor:
    """x (B, h, N, d) -> (B, N, h d / (4 K), 2 K, 2)."""
    return x.transpose(1, 2).flatten(2).unflatten(2, (-1, 2 * rows.shape[1], 2))


def rotary_features_reference(x: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Slow reference of :func:`rotary_features` in float64."""
    x = x.double()
    features = torch.where(x > 0, x + 1, x.exp())
    return features, rotate_reference(features, rows, columns)


@operator(example=lambda random: (random(2, 2, 7, 4), random(2, 1), random(3, 1)))
def rotary_features(x: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """phi of x (B, h, T + H * W, d) and phi turned as :func:`rotate` says, in float32 or better."""
    features = positive(x.to(compute_dtype(x)))
    return features, rotate(features, rows, columns)


@rotary_features.also('triton', _against_triton)
def _rotary_features_triton(x: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    from .triton import rotary

    return rotary.features(x, rows, columns)


def rotary_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor, columns: Tensor, weighted: bool = False
) -> Tensor:
    """Slow reference in float64: the N x N weights."""
    q, k = (torch.where(x > 0, x + 1, x.exp()) for x in (q.double(), k.double()))
    share = torch.full_like(k[..., 0], 1 / k.shape[2])
    if weighted:
        share = (q.shape[-1] ** -0.5 * (k * q.mean(2, keepdim=True)).sum(-1)).softmax(-1)
    weights = rotate_reference(q, rows, columns) @ rotate_reference(k, rows, columns).transpose(-1, -2)
    sums = (q @ k.transpose(-1, -2) * share.unsqueeze(2)).sum(-1, keepdim=True)
    return weights * share.unsqueeze(2) / (sums + EPSILON) @ v.double()


@operator(rotary_attention_reference, example=_example)
def rotary_attention(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, columns: Tensor, weighted: bool = False) -> Tensor:
    """``y_n = R(phi(q_n))' S / (phi(q_n).s + 1e-6)``, ``S = sum_m w_m R(phi(k_m)) v_m'``, ``s = sum_m w_m phi(k_m)``.

    q, k (B, h, N, d), v (B, h, N, e) -> (B, h, N, e) in v's dtype, in float32 or better. R turns channels as
    :func:`rotate` says. w is 1 / N, or, ``weighted``, the softmax over m of ``d^(-1/2) mean_n(phi(q_n)).phi(k_m)``.
    """
    _check_shapes(q, k, v, rows, columns)
    dtype = compute_dtype(q, k, v)
    with no_autocast(q):
        q, k = (x if compute_dtype(x) == dtype else x.to(dtype) for x in (q, k))
        q, turned_q = rotary_features(q, rows, columns)
        k, turned = rotary_features(k, rows, columns)
        if weighted:
            share = torch.matmul(k, q.mean(2).unsqueeze(-1)).mul(q.shape[-1] ** -0.5).softmax(2)  # (B, h, N, 1)
            k, turned = k * share, turned * share
            total, matrix = k.sum(2), torch.matmul(turned.transpose(-1, -2), v.to(dtype))
        else:
            total, matrix = k.mean(2), torch.matmul(turned.transpose(-1, -2), v.to(dtype)) / k.shape[2]
        sums = torch.matmul(q, total.unsqueeze(-1)) + EPSILON  # (B, h, N, 1)
        return saturating_cast(torch.matmul(turned_q, matrix) / sums, v.dtype)


def _against_slices(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor, columns: Tensor, weighted: bool = False
) -> str | None:
    if reason := eager_cpu(q):
        return reason
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        return 'gradients are kept'
    return None if q.numel() and v.numel() else 'there are no tokens'


@rotary_attention.also('cpu', _against_slices)
def _rotary_attention_cpu(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor, columns: Tensor, weighted: bool = False
) -> Tensor:
    """Whole rows of the map at a time, in a CPU's cache: no map of features, turned ones or weights ever exists."""
    _check_shapes(q, k, v, rows, columns)
    slices = _Slices(q, rows, columns, compute_dtype(q, k, v))
    with no_autocast(q):
        matrix, total = _summed(slices, k, v, slices.mean(q) if weighted else None)
        y = v.new_empty(v.shape[0], v.shape[2], v.shape[1], v.shape[3]).transpose(1, 2)
        for part in slices.parts:
            features = slices.features(q, part)
            sums = torch.matmul(features, total.unsqueeze(-1)) + EPSILON
            found = torch.matmul(slices.turned(features, part), matrix) / sums
            y[:, :, part] = saturating_cast(found, v.dtype)
        return y


def _summed(slices: '_Slices', k: Tensor, v: Tensor, mean: Tensor | None) -> tuple[Tensor, Tensor]:
    """S (B, h, d, e) and s (B, h, d), with weights 1 / N, or by ``mean`` (B, h, d) of the queries' features."""
    batch, heads, count, width = k.shape
    matrix = torch.zeros(batch, heads, width, v.shape[-1], dtype=slices.dtype)
    total = torch.zeros(batch, heads, width, dtype=slices.dtype)
    if mean is None:
        for part in slices.parts:
            features = slices.features(k, part)
            total += features.sum(2)
            matrix += torch.matmul(slices.turned(features, part).transpose(2, 3), v[:, :, part].to(slices.dtype))
        return matrix / count, total / count
    # the softmax of all scores, of which the largest is known after the last slice
    largest = torch.full((batch, heads, 1, 1), -torch.inf, dtype=slices.dtype)
    norm = torch.zeros_like(largest)
    for part in slices.parts:
        features = slices.features(k, part)
        scores = torch.matmul(features, mean.unsqueeze(-1)) * width**-0.5  # (B, h, n, 1)
        before, largest = largest, torch.maximum(largest, scores.amax(2, keepdim=True))
        fade, share = (before - largest).exp(), (scores - largest).exp()
        features = features.mul_(share)
        norm = norm * fade + share.sum(2, keepdim=True)
        total = total * fade.squeeze(-1) + features.sum(2)
        turned = slices.turned(features, part).transpose(2, 3)
        matrix = matrix * fade + torch.matmul(turned, v[:, :, part].to(slices.dtype))
    return matrix / norm, total / norm.squeeze(-1)


class _Slices:
    """Where tokens are cut, and what is made of a slice (B, h, n, d)."""

    def __init__(self, x: Tensor, rows: Tensor, columns: Tensor, dtype: torch.dtype) -> None:
        turns = [torch.polar(torch.ones_like(angles), angles) for angles in (rows.to(dtype), columns.to(dtype))]
        (self.rows, self.columns), self.dtype = turns, dtype
        self.leading, count = x.shape[2] - _tokens(rows, columns), x.shape[0] * x.shape[1] * x.shape[3]
        self.height = max(SLICE // (count * len(columns)), 1)  # rows of a slice
        self.parts = [*self._parts()]

    def _parts(self) -> Iterator[slice]:
        if self.leading:
            yield slice(0, self.leading)
        width = len(self.columns)
        for row in range(0, len(self.rows), self.height):
            end = min(row + self.height, len(self.rows))
            yield slice(self.leading + row * width, self.leading + end * width)

    def features(self, x: Tensor, part: slice) -> Tensor:
        """phi of a slice, whose channels of all heads lie together."""
        x = x[:, :, part].transpose(1, 2).to(self.dtype).contiguous()
        return x.clamp(max=0).exp_().add_(x.clamp(min=0)).transpose(1, 2)

    def mean(self, x: Tensor) -> Tensor:
        """That of all features (B, h, d)."""
        sums = [self.features(x, part).sum(2) for part in self.parts]
        return torch.stack(sums).sum(0) / x.shape[2]

    def turned(self, x: Tensor, part: slice) -> Tensor:
        """The features, turned in place, where the neighbours that turn are complex numbers."""
        if part.start < self.leading:
            return x
        first, width = (part.start - self.leading) // len(self.columns), len(self.columns)
        count, channels = self.rows.shape[1], x.shape[1] * x.shape[3]
        pairs = torch.view_as_complex(
            x.transpose(1, 2).view(x.shape[0], -1, width, channels // (4 * count), 2, count, 2)
        )
        pairs[..., 0, :].mul_(self.rows[first : first + pairs.shape[1], None, None])
        pairs[..., 1, :].mul_(self.columns[:, None])
        return x


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, columns: Tensor) -> None:
    check(
        q.dim() == v.dim() == 4
        and q.shape == k.shape
        and q.shape[:3] == v.shape[:3]
        and rows.shape[1] == columns.shape[1]
        and q.shape[1] * q.shape[3] % (4 * rows.shape[1]) == 0
        and _tokens(rows, columns) <= q.shape[2],
        'rotary_attention takes q and k (B, h, T + H * W, d), v (B, h, T + H * W, e), rows (H, K) and columns (W, K), '
        '4 K a divisor of h d',
        q=q,
        k=k,
        v=v,
        rows=rows,
        columns=columns,
    )
