"""InLine attention in two passes over the tokens, the kernel function phi of queries and keys included.

``y = phi(q) S + mean(v)`` with ``S = s/n (phi(k) - mean)' (v - mean)`` and s = d^(-1/2). A chunk of tokens gives its
means and its own centred product C, so that large means do not cancel:
``S = s/n (sum of C + n_c (mean_c(k) - mean(k))' (mean_c(v) - mean(v)))``.

Backward, given g: dS = phi(q)' g is such a sum, not centred; dphi(q) = g S', dphi(k) = s/n (v - mean(v)) dS' and
dv = s/n (phi(k) - mean) dS + mean(g), to which the gradient by a convolution of the values may be added.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .depthwise import depthwise_add, kernels_gradient
from .kernel_products import chunk_of
from .launch import PRECISION, block, operator, wrap_triton
from .tiles import at_least, at_most, store, tile


@triton.jit
def _phi(x, KERNEL: tl.constexpr):
    """The kernel function, as ops.inline.feature_map has it."""
    if KERNEL == 'relu':
        x = at_least(x, 0.0)
    elif KERNEL == 'leaky_relu':
        x = tl.where(x > 0, x, 0.01 * x)
    elif KERNEL == 'exp':
        x = tl.exp(at_most(0.2 * x, 40.0))
    return x


@triton.jit
def _slope(x, KERNEL: tl.constexpr):
    """Its derivative."""
    slope = tl.full(x.shape, 1.0, tl.float32)
    if KERNEL == 'relu':
        slope = tl.where(x > 0, 1.0, 0.0)
    elif KERNEL == 'leaky_relu':
        slope = tl.where(x > 0, 1.0, 0.01)
    elif KERNEL == 'exp':
        slope = tl.where(0.2 * x <= 40.0, 0.2 * tl.exp(tl.minimum(0.2 * x, 40.0)), 0.0)
    return slope


@triton.jit
def _features(base, start, stop, stride_n, stride_d, d, KERNEL: tl.constexpr, TOKENS: tl.constexpr, D: tl.constexpr):
    """phi of a tile of tokens, 0 beyond."""
    there = (start + tl.arange(0, TOKENS)[:, None] < stop) & (tl.arange(0, D)[None, :] < d)
    return tl.where(there, _phi(tile(base, start, stop, stride_n, stride_d, d, TOKENS, D), KERNEL), 0.0)


@triton.jit
def _summary_kernel(
    k, v, products, means, k_b, k_n, k_h, k_d, v_b, v_n, v_h, v_d, heads, n, d, e, KERNEL: tl.constexpr,
    CHUNK: tl.constexpr, TOKENS: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of a chunk of tokens: C (d, e), and the means of phi(k) and of v, one after the other (d + e)."""
    index, chunk = tl.program_id(0), tl.program_id(1)
    image, head = (index // heads).to(tl.int64), index % heads
    k += image * k_b + head * k_h
    v += image * v_b + head * v_h
    first, last = chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, n)
    mean_k, mean_v = tl.zeros((D,), tl.float32), tl.zeros((E,), tl.float32)
    for start in range(first, last, TOKENS):
        mean_k += tl.sum(_features(k, start, last, k_n, k_d, d, KERNEL, TOKENS, D), 0)
        mean_v += tl.sum(tile(v, start, last, v_n, v_d, e, TOKENS, E), 0)
    mean_k /= last - first
    mean_v /= last - first
    product = tl.zeros((D, E), tl.float32)
    for start in range(first, last, TOKENS):
        centred = _features(k, start, last, k_n, k_d, d, KERNEL, TOKENS, D) - mean_k[None, :]
        there = start + tl.arange(0, TOKENS)[:, None] < last
        value = tl.where(there, tile(v, start, last, v_n, v_d, e, TOKENS, E) - mean_v[None, :], 0.0)
        product = tl.dot(tl.trans(centred), value, product, input_precision=PRECISION)
    at = chunk.to(tl.int64) * tl.num_programs(0) + index
    store(product, products + at * d * e, 0, d, e, 1, e, D, E)
    tl.store(means + at * (d + e) + tl.arange(0, D), mean_k, tl.arange(0, D) < d)
    tl.store(means + at * (d + e) + d + tl.arange(0, E), mean_v, tl.arange(0, E) < e)


@triton.jit
def _combine_kernel(
    products, means, result, mean, scale, chunks, n, d, e, CENTRED: tl.constexpr, CHUNK: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """scale times phi(k)' v of all chunks, centred or not, and the means (d + e)."""
    index, count = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    row, column = tl.arange(0, D), tl.arange(0, E)
    mean_k, mean_v = tl.zeros((D,), tl.float32), tl.zeros((E,), tl.float32)
    for chunk in range(chunks):
        weight = tl.minimum(CHUNK, n - chunk * CHUNK).to(tl.float32) / n
        part = means + (chunk * count + index) * (d + e)
        mean_k += weight * tl.load(part + row, row < d, 0.0)
        mean_v += weight * tl.load(part + d + column, column < e, 0.0)
    total = tl.zeros((D, E), tl.float32)
    for chunk in range(chunks):
        at = chunk * count + index
        toward = tl.load(means + at * (d + e) + row, row < d, 0.0)
        value = tl.load(means + at * (d + e) + d + column, column < e, 0.0)
        if CENTRED:
            toward -= mean_k
            value -= mean_v
        total += tile(products + at * d * e, 0, d, e, 1, e, D, E)
        total += tl.minimum(CHUNK, n - chunk * CHUNK).to(tl.float32) * toward[:, None] * value[None, :]
    store(scale * total, result + index * d * e, 0, d, e, 1, e, D, E)
    tl.store(mean + index * (d + e) + row, mean_k, row < d)
    tl.store(mean + index * (d + e) + d + column, mean_v, column < e)


@triton.jit
def _output_kernel(
    q, matrix, mean, y, q_b, q_n, q_h, q_d, heads, n, d, e, KERNEL: tl.constexpr,
    TOKENS: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y = phi(q) S + mean(v); what float16 cannot hold becomes its largest value."""
    index, start = tl.program_id(0), tl.program_id(1) * TOKENS
    image, head, column = (index // heads).to(tl.int64), index % heads, tl.arange(0, E)
    query = _features(q + image * q_b + head * q_h, start, n, q_n, q_d, d, KERNEL, TOKENS, D)
    s = tile(matrix + index.to(tl.int64) * d * e, 0, d, e, 1, e, D, E)
    value = tl.dot(query, s, input_precision=PRECISION)
    value += tl.load(mean + index.to(tl.int64) * (d + e) + d + column, column < e, 0.0)[None, :]
    if y.dtype.element_ty == tl.float16:
        value = tl.clamp(value, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    store(value, y + (image * n * heads + head) * e, start, n, heads * e, 1, e, TOKENS, E)


@triton.jit
def _gradient_kernel(
    q, k, v, g, matrix, mean, grad_matrix, grad_mean, local, grad_q, grad_kv, scale,
    q_b, q_n, q_h, q_d, k_b, k_n, k_h, k_d, v_b, v_n, v_h, v_d, g_b, g_n, g_h, g_d, heads, n, d, e,
    KERNEL: tl.constexpr, LOCAL: tl.constexpr, TOKENS: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of queries, and of keys and values, one after the other; LOCAL: dv has another part."""
    index, start = tl.program_id(0), tl.program_id(1) * TOKENS
    image, head = (index // heads).to(tl.int64), index % heads
    row, column = tl.arange(0, D), tl.arange(0, E)
    small, means = index.to(tl.int64) * d * e, index.to(tl.int64) * (d + e)
    gradient = tile(g + image * g_b + head * g_h, start, n, g_n, g_d, e, TOKENS, E)
    transposed = tile(matrix + small, 0, e, 1, e, d, E, D)  # S'
    dq = tl.dot(gradient, transposed, input_precision=PRECISION)
    dq *= _slope(tile(q + image * q_b + head * q_h, start, n, q_n, q_d, d, TOKENS, D), KERNEL)
    store(dq, grad_q + (image * n * heads + head) * d, start, n, heads * d, 1, d, TOKENS, D)
    value = tile(v + image * v_b + head * v_h, start, n, v_n, v_d, e, TOKENS, E)
    value -= tl.load(mean + means + d + column, column < e, 0.0)[None, :]
    transposed = tile(grad_matrix + small, 0, e, 1, e, d, E, D)
    key = tile(k + image * k_b + head * k_h, start, n, k_n, k_d, d, TOKENS, D)
    dk = scale * tl.dot(value, transposed, input_precision=PRECISION) * _slope(key, KERNEL)
    wide = heads * (d + e)
    grad_kv += image * n * wide
    store(dk, grad_kv + head * d, start, n, wide, 1, d, TOKENS, D)
    key = _phi(key, KERNEL) - tl.load(mean + means + row, row < d, 0.0)[None, :]
    ds = tile(grad_matrix + small, 0, d, e, 1, e, D, E)
    dv = scale * tl.dot(key, ds, input_precision=PRECISION)
    dv += tl.load(grad_mean + means + d + column, column < e, 0.0)[None, :]
    if LOCAL:
        dv += tile(local + (image * n * heads + head) * e, start, n, heads * e, 1, e, TOKENS, E)
    store(dv, grad_kv + heads * d + head * e, start, n, wide, 1, e, TOKENS, E)


def tiles(d: int, e: int) -> dict[str, int]:
    """Tiles of tokens and programs for them that fit into every GPU's registers and shared memory."""
    if max(d, e) <= 32:
        return dict(TOKENS=64, num_warps=4, num_stages=3)
    return dict(TOKENS=32, num_warps=8, num_stages=1)


@operator
def inline_summary(k: Tensor, v: Tensor, kernel: str) -> tuple[Tensor, Tensor]:
    """k (B, N, h, d), v (B, N, h, e) -> products (chunks, B, h, d, e) and means (chunks, B, h, d + e)."""
    batch, n, heads, d = k.shape
    e, chunk = v.shape[3], chunk_of(n)
    chunks = triton.cdiv(n, chunk)
    products = k.new_empty((chunks, batch, heads, d, e), dtype=torch.float32)
    means = products.new_empty((chunks, batch, heads, d + e))
    wrap_triton(_summary_kernel, k)[(batch * heads, chunks)](
        k, v, products, means, *k.stride(), *v.stride(), heads, n, d, e, KERNEL=kernel,
        CHUNK=chunk, D=block(d), E=block(e), PRECISION=PRECISION, **tiles(d, e),
    )  # fmt: skip
    return products, means


@operator
def inline_combine(products: Tensor, means: Tensor, scale: float, n: int, centred: bool) -> tuple[Tensor, Tensor]:
    """The chunks of n tokens together: scale phi(k)' v (B, h, d, e), centred or not, and means (B, h, d + e)."""
    chunks, batch, heads, d, e = products.shape
    result, mean = products.new_empty(products.shape[1:]), means.new_empty(means.shape[1:])
    wrap_triton(_combine_kernel, products)[(batch * heads,)](
        products, means, result, mean, scale, chunks, n, d, e, CENTRED=centred, CHUNK=chunk_of(n),
        D=block(d), E=block(e), num_warps=4,
    )  # fmt: skip
    return result, mean


@operator
def inline_output(q: Tensor, matrix: Tensor, mean: Tensor, kernel: str, dtype: torch.dtype) -> Tensor:
    """q (B, N, h, d), S (B, h, d, e), means (B, h, d + e) -> y (B, N, h, e) of this dtype."""
    batch, n, heads, d = q.shape
    e = matrix.shape[3]
    y = q.new_empty((batch, n, heads, e), dtype=dtype)
    wrap_triton(_output_kernel, q)[(batch * heads, triton.cdiv(n, tiles(d, e)['TOKENS']))](
        q, matrix, mean, y, *q.stride(), heads, n, d, e, KERNEL=kernel,
        D=block(d), E=block(e), PRECISION=PRECISION, **tiles(d, e),
    )  # fmt: skip
    return y


@operator
def inline_gradient(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, matrix: Tensor, mean: Tensor, grad_matrix: Tensor, grad_mean: Tensor,
    local: Tensor | None, scale: float, kernel: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """dq (B, N, h, d), and dk and dv side by side (B, N, h d + h e); ``local`` (B, N, h e) is added to dv."""
    batch, n, heads, d = q.shape
    e = v.shape[3]
    together = k.dtype if k.dtype == v.dtype else torch.float32  # autograd rounds to each
    grad_q, grad_kv = q.new_empty(q.shape), k.new_empty((batch, n, heads * (d + e)), dtype=together)
    wrap_triton(_gradient_kernel, q)[(batch * heads, triton.cdiv(n, tiles(d, e)['TOKENS']))](
        q, k, v, g, matrix, mean, grad_matrix, grad_mean, g if local is None else local, grad_q, grad_kv, scale,
        *q.stride(), *k.stride(), *v.stride(), *g.stride(), heads, n, d, e, KERNEL=kernel,
        LOCAL=local is not None, D=block(d), E=block(e), PRECISION=PRECISION, **tiles(d, e),
    )  # fmt: skip
    return grad_q, grad_kv


def _forward(ctx, q: Tensor, k: Tensor, v: Tensor, kernel: str) -> Tensor:
    """q, k (B, N, h, d) and v (B, N, h, e) -> (B, N, h, e)."""
    n, d = k.shape[1], k.shape[3]
    ctx.scale, ctx.kernel = d**-0.5 / n, kernel
    products, means = inline_summary(k, v, kernel)
    matrix, mean = inline_combine(products, means, ctx.scale, n, True)
    ctx.save_for_backward(q, k, v, matrix, mean, *ctx.others)
    return inline_output(q, matrix, mean, kernel, v.dtype)


def _backward(ctx, saved: tuple[Tensor, ...], g: Tensor, local: Tensor | None) -> tuple[Tensor, Tensor]:
    """dq, and dk and dv side by side; ``saved`` is read once, as checkpoints want it."""
    q, k, v, matrix, mean = saved[:5]
    products, means = inline_summary(q, g, ctx.kernel)
    grad_matrix, grad_mean = inline_combine(products, means, 1.0, q.shape[1], False)
    return inline_gradient(q, k, v, g, matrix, mean, grad_matrix, grad_mean, local, ctx.scale, ctx.kernel)


class _InLine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, kernel: str) -> Tensor:
        ctx.others = ()
        return _forward(ctx, q, k, v, kernel)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        saved = ctx.saved_tensors
        dq, dkv = _backward(ctx, saved, g, None)
        v = saved[2]
        dk, dv = dkv.split((dq.shape[2] * dq.shape[3], v.shape[2] * v.shape[3]), 2)
        return dq, dk.unflatten(2, dq.shape[2:]), dv.unflatten(2, v.shape[2:]), None


class _InLineWithConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, kv: Tensor, kernels: Tensor, height: int, width: int, heads: int, kernel: str):
        ctx.others, ctx.grid = (kernels,), (height, width)
        k, v = kv.chunk(2, -1)
        y = _forward(ctx, *(x.unflatten(2, (heads, -1)) for x in (q, k, v)), kernel)
        return depthwise_add(y.flatten(2), v, kernels, None, height, width, False, v.dtype)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        v, kernels = saved[2].flatten(2), saved[5]
        local = depthwise_add(None, g, kernels, None, *ctx.grid, True, v.dtype)
        dq, dkv = _backward(ctx, saved, g.unflatten(2, saved[2].shape[2:]), local)
        return dq.flatten(2), dkv, kernels_gradient(v, g, kernels, *ctx.grid), None, None, None, None


def inline_attention(q: Tensor, k: Tensor, v: Tensor, kernel: str = 'identity') -> Tensor:
    """q and k (B, N, h, d) before the kernel function, v (B, N, h, e) -> (B, N, h, e) in v's dtype."""
    return _InLine.apply(q, k, v, kernel)


def inline_with_convolution(
    q: Tensor, kv: Tensor, kernels: Tensor, grid: tuple[int, int], heads: int, kernel: str = 'identity'
) -> Tensor:
    """q (B, T + H W, C), kv (B, T + H W, 2 C), kernels (B, C, 3, 3) -> (B, T + H W, C) in kv's dtype."""
    return _InLineWithConvolution.apply(q, kv, kernels, *grid, heads, kernel)
