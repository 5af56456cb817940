"""A residual sum and the LayerNorm after it, in one pass over the tokens; and their gradient in another.

``s = x + f y`` and ``n = w z + b`` with ``z = (s - mean) r``, ``r = (var + eps)^(-1/2)`` of each token. Given the
gradients of both and ``u = w dn``: ``ds = gs + r (u - mean(u) - z mean(u z))``, ``dx = ds``, ``dy = f ds``; dw sums
``dn z`` and db sums dn, over chunks of tokens and then in order. Statistics are cheaper made again than kept.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import operator, wrap_triton
from .tiles import store, tile

VALUES = 4096  # in a tile
CHUNKS, CHANNELS = 32, 64  # in a tile of parts


@triton.jit
def _normal(s, c, eps, C: tl.constexpr):
    """(s - mean) r of tokens s (tokens, C), 0 beyond c channels; and r (tokens)."""
    exists = tl.arange(0, C)[None, :] < c
    centred = tl.where(exists, s - (tl.sum(s, 1) / c)[:, None], 0.0)
    r = tl.rsqrt(tl.sum(centred * centred, 1) / c + eps)
    return centred * r[:, None], r


@triton.jit
def _factor(noise, start, stop, n, share, TOKENS: tl.constexpr):
    """f of tokens: an image's noise times the share that all have."""
    token = start + tl.arange(0, TOKENS)
    return share * tl.load(noise + token // n, token < stop, 0.0).to(tl.float32)


@triton.jit
def _add_norm_kernel(
    x, y, weight, bias, noise, s, normed, share, eps, count, n, c, NOISE: tl.constexpr, KEEP: tl.constexpr,
    TOKENS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """s, if it is to be kept, and n of a tile of all images' tokens (count, c); what an image has of them is n."""
    start, column = tl.program_id(0).to(tl.int64) * TOKENS, tl.arange(0, C)
    branch = tile(y, start, count, c, 1, c, TOKENS, C)
    if NOISE:
        branch *= _factor(noise, start, count, n, share, TOKENS)[:, None]
    total = tile(x, start, count, c, 1, c, TOKENS, C) + branch
    if KEEP:
        store(total, s, start, count, c, 1, c, TOKENS, C)
    z, _r = _normal(total, c, eps, C)
    w = tl.load(weight + column, column < c, 0.0).to(tl.float32)[None, :]
    b = tl.load(bias + column, column < c, 0.0).to(tl.float32)[None, :]
    store(z * w + b, normed, start, count, c, 1, c, TOKENS, C)


@triton.jit
def _add_norm_gradient_kernel(
    s, weight, noise, grad_s, grad_n, dx, dy, parts, share, eps, count, n, c, SUM: tl.constexpr, NOISE: tl.constexpr,
    BRANCH: tl.constexpr, CHUNK: tl.constexpr, TOKENS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """dx, also dy where it differs (BRANCH), and parts (chunks, 2, c) of dw and db, of a chunk of tokens."""
    chunk, column = tl.program_id(0).to(tl.int64), tl.arange(0, C)
    w = tl.load(weight + column, column < c, 0.0).to(tl.float32)[None, :]
    dw, db = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    for start in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, count), TOKENS):
        z, r = _normal(tile(s, start, count, c, 1, c, TOKENS, C), c, eps, C)
        dn = tile(grad_n, start, count, c, 1, c, TOKENS, C)
        dw += tl.sum(dn * z, 0)
        db += tl.sum(dn, 0)
        u = dn * w
        ds = r[:, None] * (u - (tl.sum(u, 1) / c)[:, None] - z * (tl.sum(u * z, 1) / c)[:, None])
        if SUM:
            ds += tile(grad_s, start, count, c, 1, c, TOKENS, C)
        store(ds, dx, start, count, c, 1, c, TOKENS, C)
        if BRANCH:
            if NOISE:
                ds *= _factor(noise, start, count, n, share, TOKENS)[:, None]
            store(ds, dy, start, count, c, 1, c, TOKENS, C)
    tl.store(parts + chunk * 2 * c + column, dw, column < c)
    tl.store(parts + chunk * 2 * c + c + column, db, column < c)


@triton.jit
def _channel_total_kernel(parts, result, chunks, c, CHUNKS: tl.constexpr, CHANNELS: tl.constexpr):
    """The sum of parts (chunks, c)."""
    first = tl.program_id(0) * CHANNELS
    total = tl.zeros((CHUNKS, CHANNELS), tl.float32)
    for start in range(0, chunks, CHUNKS):
        total += tile(parts + first, start, chunks, c, 1, c - first, CHUNKS, CHANNELS)
    column = tl.arange(0, CHANNELS)
    tl.store(result + first + column, tl.sum(total, 0).to(result.dtype.element_ty), column < c - first)


def tile_of(c: int) -> dict[str, int]:
    """Tokens of c channels that a program has in registers."""
    width = triton.next_power_of_2(c)
    return dict(TOKENS=max(VALUES // width, 1), C=width, num_warps=4 if width <= 512 else 8)


def chunk_of(tokens: int, c: int) -> int:
    """Tokens whose gradients a program sums, whole tiles of them: some hundred programs from one image."""
    return max(triton.next_power_of_2(tokens // 512), tile_of(c)['TOKENS'], 32)


@operator
def add_norm(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, noise: Tensor | None, share: float, eps: float, keep: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """x and y (B, N, C) -> s, which is empty unless to be kept, and n of this dtype; f is noise (B) times ``share``."""
    batch, n, c = x.shape
    x, y = x.contiguous(), y.contiguous()
    s = x.new_empty((batch, n, c) if keep else (0,), dtype=x.dtype if x.dtype == y.dtype else torch.float32)
    normed = torch.empty_like(x, dtype=dtype)
    options = tile_of(c)
    wrap_triton(_add_norm_kernel, x)[(triton.cdiv(batch * n, options['TOKENS']),)](
        x, y, weight, bias, x if noise is None else noise, s, normed, share, eps, batch * n, n, c,
        NOISE=noise is not None, KEEP=keep, **options,
    )  # fmt: skip
    return s, normed


@operator
def add_norm_gradient(
    s: Tensor, weight: Tensor, noise: Tensor | None, grad_s: Tensor | None, grad_n: Tensor, share: float, eps: float,
    x_dtype: torch.dtype, y_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dx; dy, which is empty where it is dx; parts (chunks, 2, C) of dw and db."""
    batch, n, c = s.shape
    chunk, branch = chunk_of(batch * n, c), noise is not None or x_dtype != y_dtype
    dx = torch.empty_like(s, dtype=x_dtype)
    dy = s.new_empty((batch, n, c) if branch else (0,), dtype=y_dtype)
    parts = s.new_empty((triton.cdiv(batch * n, chunk), 2, c), dtype=torch.float32)
    grad_n = grad_n.contiguous()
    wrap_triton(_add_norm_gradient_kernel, s)[(parts.shape[0],)](
        s, weight, s if noise is None else noise, grad_n if grad_s is None else grad_s.contiguous(), grad_n,
        dx, dy, parts, share, eps, batch * n, n, c,
        SUM=grad_s is not None, NOISE=noise is not None, BRANCH=branch, CHUNK=chunk, **tile_of(c),
    )  # fmt: skip
    return dx, dy, parts


@operator
def channel_total(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of parts (chunks, r, C) -> (r, C) of this dtype."""
    result = parts.new_empty(parts.shape[1:], dtype=dtype)
    wrap_triton(_channel_total_kernel, parts)[(triton.cdiv(result.numel(), CHANNELS),)](
        parts, result, len(parts), result.numel(), CHUNKS=CHUNKS, CHANNELS=CHANNELS, num_warps=4
    )
    return result


def _setup(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    x, y, weight, _bias, noise, share, eps, _keep, _dtype = inputs
    ctx.save_for_backward(output[0], weight, noise)
    ctx.options = share, eps, x.dtype, y.dtype
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_s: Tensor | None, grad_n: Tensor | None) -> tuple[Tensor | None, ...]:
    s, weight, noise = ctx.saved_tensors
    grad_n = torch.zeros_like(s) if grad_n is None else grad_n
    dx, dy, parts = add_norm_gradient(s, weight, noise, grad_s, grad_n, *ctx.options)
    dw, db = channel_total(parts, weight.dtype)
    return dx, dy if dy.numel() else dx, dw, db, None, None, None, None, None


add_norm.register_autograd(_backward, setup_context=_setup)
