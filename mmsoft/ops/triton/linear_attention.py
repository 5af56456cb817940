"""Linear attention ``y = q S / t``, ``t = max(q.mean(k), LEAST) + epsilon`` with ``S = mean(k' v)`` in two passes.

Sums over keys are InLine's, not centred. Backward, given g: ``u = g / t`` and ``dt = -u.y`` where t is not its bound;
``dq = u S' + dt mean(k)``, dS sums ``q' u`` and dmean sums ``dt q`` over queries, in chunks and then in order;
``dk = (v dS' + dmean) / n`` and ``dv = k dS / n``.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .inline import inline_combine, inline_summary, tiles
from .kernel_products import chunk_of
from .launch import PRECISION, block, operator, wrap_triton
from .residual import channel_total
from .tiles import at_least, store, tile


@triton.jit
def _divided(query, s, toward, least, epsilon, PRECISION: tl.constexpr):
    """y of queries (tokens, d), t (tokens), and whether t follows the queries."""
    weight = tl.sum(query * toward[None, :], 1)
    total = at_least(weight, least) + epsilon
    return tl.dot(query, s, input_precision=PRECISION) / total[:, None], total, weight >= least


@triton.jit
def _linear_output_kernel(
    q, matrix, mean, y, least, epsilon, q_b, q_n, q_h, q_d, heads, n, d, e,
    TOKENS: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y; what float16 cannot hold becomes its largest value."""
    index, start = tl.program_id(0), tl.program_id(1) * TOKENS
    image, head, row = (index // heads).to(tl.int64), index % heads, tl.arange(0, D)
    query = tile(q + image * q_b + head * q_h, start, n, q_n, q_d, d, TOKENS, D)
    s = tile(matrix + index.to(tl.int64) * d * e, 0, d, e, 1, e, D, E)
    toward = tl.load(mean + index.to(tl.int64) * (d + e) + row, row < d, 0.0)
    value, _total, _free = _divided(query, s, toward, least, epsilon, PRECISION)
    if y.dtype.element_ty == tl.float16:
        value = tl.clamp(value, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    store(value, y + (image * n * heads + head) * e, start, n, heads * e, 1, e, TOKENS, E)


@triton.jit
def _query_gradient_kernel(
    q, g, matrix, mean, grad_q, parts, least, epsilon, q_b, q_n, q_h, q_d, g_b, g_n, g_h, g_d, heads, n, d, e,
    CHUNK: tl.constexpr, TOKENS: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq of a chunk of queries, and its parts (chunks, B h, d, e + 1) of dS and, in the last column, of dmean."""
    index, chunk = tl.program_id(0), tl.program_id(1)
    image, head, row = (index // heads).to(tl.int64), index % heads, tl.arange(0, D)
    q += image * q_b + head * q_h
    g += image * g_b + head * g_h
    small = index.to(tl.int64) * d * e
    s = tile(matrix + small, 0, d, e, 1, e, D, E)
    toward = tl.load(mean + index.to(tl.int64) * (d + e) + row, row < d, 0.0)
    product, side = tl.zeros((D, E), tl.float32), tl.zeros((D,), tl.float32)
    for start in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, n), TOKENS):
        query = tile(q, start, n, q_n, q_d, d, TOKENS, D)
        y, total, free = _divided(query, s, toward, least, epsilon, PRECISION)
        u = tile(g, start, n, g_n, g_d, e, TOKENS, E) / total[:, None]
        dt = tl.where(free, -tl.sum(u * y, 1), 0.0)[:, None]
        dq = tl.dot(u, tile(matrix + small, 0, e, 1, e, d, E, D), input_precision=PRECISION) + dt * toward[None, :]
        store(dq, grad_q + (image * n * heads + head) * d, start, n, heads * d, 1, d, TOKENS, D)
        side += tl.sum(dt * query, 0)
    # once more, without S: with it, wide heads would not fit into registers
    for start in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, n), TOKENS):
        query = tile(q, start, n, q_n, q_d, d, TOKENS, D)
        total = at_least(tl.sum(query * toward[None, :], 1), least) + epsilon
        u = tile(g, start, n, g_n, g_d, e, TOKENS, E) / total[:, None]
        product = tl.dot(tl.trans(query), u, product, input_precision=PRECISION)
    parts += (chunk.to(tl.int64) * tl.num_programs(0) + index) * d * (e + 1)
    store(product, parts, 0, d, e + 1, 1, e, D, E)
    tl.store(parts + row * (e + 1) + e, side, row < d)


@triton.jit
def _key_gradient_kernel(
    k, v, grad, grad_k, grad_v, k_b, k_n, k_h, k_d, v_b, v_n, v_h, v_d, heads, n, d, e,
    TOKENS: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dk and dv of a tile of keys, from dS and dmean (d, e + 1)."""
    index, start = tl.program_id(0), tl.program_id(1) * TOKENS
    image, head, row = (index // heads).to(tl.int64), index % heads, tl.arange(0, D)
    grad += index.to(tl.int64) * d * (e + 1)
    value = tile(v + image * v_b + head * v_h, start, n, v_n, v_d, e, TOKENS, E)
    dk = tl.dot(value, tile(grad, 0, e, 1, e + 1, d, E, D), input_precision=PRECISION)
    dk = (dk + tl.load(grad + row * (e + 1) + e, row < d, 0.0)[None, :]) / n
    store(dk, grad_k + (image * n * heads + head) * d, start, n, heads * d, 1, d, TOKENS, D)
    key = tile(k + image * k_b + head * k_h, start, n, k_n, k_d, d, TOKENS, D)
    dv = tl.dot(key, tile(grad, 0, d, e + 1, 1, e, D, E), input_precision=PRECISION) / n
    store(dv, grad_v + (image * n * heads + head) * e, start, n, heads * e, 1, e, TOKENS, E)


def query_tiles(d: int, e: int) -> dict[str, int]:
    """As :func:`tiles`, for the pass that holds most in registers."""
    return tiles(d, e) | (dict(TOKENS=16) if max(d, e) > 32 else {})


@operator
def linear_output(
    q: Tensor, matrix: Tensor, mean: Tensor, least: float, epsilon: float, dtype: torch.dtype
) -> Tensor:  # fmt: skip
    """q (B, N, h, d), S (B, h, d, e), means (B, h, d + e) -> y (B, N, h, e) of this dtype."""
    batch, n, heads, d = q.shape
    e = matrix.shape[3]
    y = q.new_empty((batch, n, heads, e), dtype=dtype)
    wrap_triton(_linear_output_kernel, q)[(batch * heads, triton.cdiv(n, tiles(d, e)['TOKENS']))](
        q, matrix, mean, y, least, epsilon, *q.stride(), heads, n, d, e,
        D=block(d), E=block(e), PRECISION=PRECISION, **tiles(d, e),
    )  # fmt: skip
    return y


@operator
def linear_query_gradient(
    q: Tensor, g: Tensor, matrix: Tensor, mean: Tensor, least: float, epsilon: float
) -> tuple[Tensor, Tensor]:
    """dq (B, N, h, d), and parts (chunks, B h, d (e + 1)) of what keys and values need."""
    batch, n, heads, d = q.shape
    e, chunk = matrix.shape[3], chunk_of(n)
    grad_q = q.new_empty(q.shape)
    parts = q.new_empty((triton.cdiv(n, chunk), batch * heads, d * (e + 1)), dtype=torch.float32)
    wrap_triton(_query_gradient_kernel, q)[(batch * heads, len(parts))](
        q, g, matrix, mean, grad_q, parts, least, epsilon, *q.stride(), *g.stride(), heads, n, d, e,
        CHUNK=chunk, D=block(d), E=block(e), PRECISION=PRECISION, **query_tiles(d, e),
    )  # fmt: skip
    return grad_q, parts


@operator
def linear_key_gradient(k: Tensor, v: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """dk (B, N, h, d) and dv (B, N, h, e), from dS and dmean (B h, d (e + 1))."""
    batch, n, heads, d = k.shape
    e = v.shape[3]
    grad_k, grad_v = k.new_empty(k.shape), v.new_empty(v.shape)
    wrap_triton(_key_gradient_kernel, k)[(batch * heads, triton.cdiv(n, tiles(d, e)['TOKENS']))](
        k, v, grad, grad_k, grad_v, *k.stride(), *v.stride(), heads, n, d, e,
        D=block(d), E=block(e), PRECISION=PRECISION, **tiles(d, e),
    )  # fmt: skip
    return grad_k, grad_v


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, least: float, epsilon: float) -> Tensor:
        products, means = inline_summary(k, v, 'identity')
        matrix, mean = inline_combine(products, means, 1 / k.shape[1], k.shape[1], False)
        ctx.save_for_backward(q, k, v, matrix, mean)
        ctx.bounds = least, epsilon
        return linear_output(q, matrix, mean, least, epsilon, v.dtype)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, matrix, mean = ctx.saved_tensors
        grad_q, parts = linear_query_gradient(q, g, matrix, mean, *ctx.bounds)
        grad_k, grad_v = linear_key_gradient(k, v, channel_total(parts, torch.float32))
        return grad_q, grad_k, grad_v, None, None


def linear_attention(q: Tensor, k: Tensor, v: Tensor, least: float, epsilon: float) -> Tensor:
    """Features q (B, N, h, d) and k (B, M, h, d), v (B, M, h, e) -> (B, N, h, e) in v's dtype."""
    return _Linear.apply(q, k, v, least, epsilon)
