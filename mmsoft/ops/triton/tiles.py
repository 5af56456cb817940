"""Tiles of tokens in memory, as kernels read and write them; and bounds of values."""

import triton
import triton.language as tl


@triton.jit
def at_least(x, bound):
    """The larger of both; NaN stays, which GPUs' max would turn into the bound, as the interpreter does not."""
    return tl.maximum(x, bound, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def at_most(x, bound):
    """The smaller of both; NaN stays."""
    return tl.minimum(x, bound, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def rows(base, start, stop, stride_n, stride_d, width, TOKENS: tl.constexpr, WIDTH: tl.constexpr):
    """Offsets and mask of a tile (TOKENS, WIDTH)."""
    row, column = start + tl.arange(0, TOKENS)[:, None], tl.arange(0, WIDTH)[None, :]
    return base + row * stride_n + column * stride_d, (row < stop) & (column < width)


@triton.jit
def tile(base, start, stop, stride_n, stride_d, width, TOKENS: tl.constexpr, WIDTH: tl.constexpr):
    """A tile (TOKENS, WIDTH) in float32, 0 beyond."""
    at, exists = rows(base, start, stop, stride_n, stride_d, width, TOKENS, WIDTH)
    return tl.load(at, exists, 0.0).to(tl.float32)


@triton.jit
def store(value, base, start, stop, stride_n, stride_d, width, TOKENS: tl.constexpr, WIDTH: tl.constexpr):
    """Store a tile (TOKENS, WIDTH) in the type of the memory."""
    at, exists = rows(base, start, stop, stride_n, stride_d, width, TOKENS, WIDTH)
    tl.store(at, value.to(base.dtype.element_ty), exists)
