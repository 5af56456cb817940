"""phi of queries or keys, and phi turned by position, in one pass; and their gradient in another.

With ``f = phi(x)``, ``phi(t) = exp(min(t, 0)) + max(t, 0)``, neighbouring channels (a, b) of f become
``(a cos - b sin, a sin + b cos)``. Given the gradients u of f and (v, w) of a turned pair:
``dx = phi'(x) (u + (v cos + w sin, w cos - v sin))``. Without phi, x itself is turned and nothing else is made.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import operator, wrap_triton
from .tiles import at_least, at_most

VALUES = 512  # pairs in a tile


@triton.jit
def _turn(rows, columns, token, leading, head, n, width, count, half, PAIRS: tl.constexpr):
    """cos and sin (tokens, PAIRS) of a head's pairs, and which of them exist."""
    pair = tl.arange(0, PAIRS)[None, :]
    place = (head * half + pair) % (2 * count)  # among the frequencies of rows, then of columns
    by_row = place < count
    at = tl.maximum(token - leading, 0)
    row, column = (at // width)[:, None] * count + place, (at % width)[:, None] * count + place - count
    there = (token < n)[:, None] & (pair < half)
    turns = there & (token >= leading)[:, None]
    angle = tl.load(rows + row, turns & by_row, 0.0) + tl.load(columns + column, turns & (place >= count), 0.0)
    return tl.cos(angle), tl.sin(angle), there


@triton.jit
def _phi(x, PHI: tl.constexpr):
    """The feature of x, or x itself."""
    if not PHI:
        return x
    return tl.exp(at_most(x, 0.0)) + at_least(x, 0.0)


@triton.jit
def _rotary_features_kernel(
    x, rows, columns, features, turned, x_b, x_h, x_n, x_d, heads, n, half, width, count, leading,
    PHI: tl.constexpr, TOKENS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """phi and the turned phi of a tile, both (B, h, N, d); a turned head has its first channels before its second."""
    index, token = tl.program_id(0), tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    image, head, pair = (index // heads).to(tl.int64), index % heads, tl.arange(0, PAIRS)[None, :]
    cos, sin, there = _turn(rows, columns, token, leading, head, n, width, count, half, PAIRS)
    at = x + image * x_b + head * x_h + token[:, None].to(tl.int64) * x_n + 2 * pair * x_d
    a = _phi(tl.load(at, there, 0.0).to(tl.float32), PHI)
    b = _phi(tl.load(at + x_d, there, 0.0).to(tl.float32), PHI)
    out = (index.to(tl.int64) * n + token[:, None]) * 2 * half
    if PHI:
        tl.store(features + out + 2 * pair, a, there)
        tl.store(features + out + 2 * pair + 1, b, there)
    tl.store(turned + out + pair, a * cos - b * sin, there)
    tl.store(turned + out + half + pair, a * sin + b * cos, there)


@triton.jit
def _rotary_gradient_kernel(
    x, rows, columns, u, v, dx, x_b, x_h, x_n, x_d, u_b, u_h, u_n, u_d, v_b, v_h, v_n, v_d, heads, n, half, width,
    count, leading, PHI: tl.constexpr, TOKENS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """dx (B, N, h, d) of a tile."""
    index, token = tl.program_id(0), tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    image, head, pair = (index // heads).to(tl.int64), index % heads, tl.arange(0, PAIRS)[None, :]
    cos, sin, there = _turn(rows, columns, token, leading, head, n, width, count, half, PAIRS)
    place = token[:, None].to(tl.int64)
    at = v + image * v_b + head * v_h + place * v_n + pair * v_d
    first, second = tl.load(at, there, 0.0).to(tl.float32), tl.load(at + half * v_d, there, 0.0).to(tl.float32)
    da, db = first * cos + second * sin, second * cos - first * sin
    if PHI:
        at = u + image * u_b + head * u_h + place * u_n + 2 * pair * u_d
        da += tl.load(at, there, 0.0).to(tl.float32)
        db += tl.load(at + u_d, there, 0.0).to(tl.float32)
        at = x + image * x_b + head * x_h + place * x_n + 2 * pair * x_d
        da *= tl.exp(at_most(tl.load(at, there, 0.0).to(tl.float32), 0.0))
        db *= tl.exp(at_most(tl.load(at + x_d, there, 0.0).to(tl.float32), 0.0))
    out = dx + ((image * n + token[:, None]) * heads + head) * 2 * half + 2 * pair
    tl.store(out, da.to(dx.dtype.element_ty), there)
    tl.store(out + 1, db.to(dx.dtype.element_ty), there)


def _grid(x: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """Programs, and the tile of each."""
    batch, heads, n, d = x.shape
    pairs = triton.next_power_of_2(d // 2)
    tokens = max(VALUES // pairs, 1)
    return (batch * heads, triton.cdiv(n, tokens)), dict(TOKENS=tokens, PAIRS=pairs, num_warps=2)


@operator
def rotary_features(x: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, h, T + H * W, d), rows (H, K), columns (W, K) -> phi and the turned phi, contiguous, in float32."""
    features, turned = (x.new_empty(x.shape, dtype=torch.float32) for _ in range(2))
    _forward(x, rows, columns, features, turned, PHI=True)
    return features, turned


@operator
def rotary_turn(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """x (B, h, T + H * W, d), rows (H, K), columns (W, K) -> x turned, contiguous, in float32."""
    turned = x.new_empty(x.shape, dtype=torch.float32)
    _forward(x, rows, columns, turned, turned, PHI=False)
    return turned


def _forward(x: Tensor, rows: Tensor, columns: Tensor, *results: Tensor, PHI: bool) -> None:
    grid, tile = _grid(x)
    wrap_triton(_rotary_features_kernel, x)[grid](
        x, rows, columns, *results, *x.stride(), *_sizes(x, rows, columns), PHI=PHI, **tile
    )


def _sizes(x: Tensor, rows: Tensor, columns: Tensor) -> tuple[int, ...]:
    """heads, n, half, width, count and leading, as kernels call them."""
    _, heads, n, d = x.shape
    return heads, n, d // 2, columns.shape[0], rows.shape[1], n - rows.shape[0] * columns.shape[0]


@operator
def rotary_gradient(x: Tensor, rows: Tensor, columns: Tensor, u: Tensor | None, v: Tensor) -> Tensor:
    """dx (B, T + H * W, h, d) of the gradients of phi, if it was made, and of what was turned, (B, h, T + H * W, d)."""
    batch, heads, n, d = x.shape
    grid, tile = _grid(x)
    dx, of_phi = x.new_empty((batch, n, heads, d)), v if u is None else u
    wrap_triton(_rotary_gradient_kernel, x)[grid](
        x, rows, columns, of_phi, v, dx, *x.stride(), *of_phi.stride(), *v.stride(), *_sizes(x, rows, columns),
        PHI=u is not None, **tile,
    )  # fmt: skip
    return dx


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, rows, columns)
        return rotary_features(x, rows, columns)

    @staticmethod
    def backward(ctx, u: Tensor, v: Tensor) -> tuple[Tensor, None, None]:
        return rotary_gradient(*ctx.saved_tensors, u, v).transpose(1, 2), None, None


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(x, rows, columns)
        return rotary_turn(x, rows, columns)

    @staticmethod
    def backward(ctx, v: Tensor) -> tuple[Tensor, None, None]:
        return rotary_gradient(*ctx.saved_tensors, None, v).transpose(1, 2), None, None


def features(x: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """phi and the turned phi of x (B, h, T + H * W, d), in float32."""
    return _Features.apply(x, rows, columns)


def turn(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """x (B, h, T + H * W, d) turned, in float32."""
    return _Turned.apply(x, rows, columns)
