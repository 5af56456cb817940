"""``K M K' v`` for the kernel matrix K = k(s q, landmarks), N x m, of which no more than a tile ever exists.

Tokens are read in place, by their strides. Sums are in float32; those over tokens are made in chunks, whose number
follows from N alone, and then in order: neither the batch nor the run changes a bit.

Backward, of y = K c with c = M t and t = K' v, given g: dc = K' g, dt = M' dc, dM = dc t', dv = K dt; and of the
exponents -|s q - l|^2 / 2 it is X = (g c' + v dt') * K, which gives dq = s (X l - X 1 s q) and dl = X' s q - (X' 1) l.
Each of these is a pass over the tokens: in one kernel they would not fit into registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import PRECISION, block, operator, wrap_triton
from .tiles import at_least, at_most, rows, store, tile

TOKENS = 64  # in a tile


@triton.jit
def _kernel(q, landmarks, PRECISION: tl.constexpr):
    """K of a tile q (n, d) and landmarks (m, d): -|q - l|^2 / 2 = q.l - |l|^2 / 2 - |q|^2 / 2, at most 0."""
    exponent = tl.dot(q, tl.trans(landmarks), input_precision=PRECISION)
    exponent -= tl.sum(q * q, 1)[:, None] / 2 + tl.sum(landmarks * landmarks, 1)[None, :] / 2
    return tl.exp(at_most(at_least(exponent, -40.0), 0.0))


@triton.jit
def _sums_kernel(
    q, landmarks, v, parts, scale, q_b, q_n, q_h, q_d, l_b, l_h, l_m, l_d, v_b, v_n, v_h, v_d, heads, n, m, d, e,
    CHUNK: tl.constexpr, TOKENS: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """K' v of a chunk of tokens: parts (chunks, B h, m, e)."""
    index, chunk = tl.program_id(0), tl.program_id(1)
    image, head = (index // heads).to(tl.int64), index % heads
    q += image * q_b + head * q_h
    v += image * v_b + head * v_h
    lm = tile(landmarks + image * l_b + head * l_h, 0, m, l_m, l_d, d, M, D)
    total = tl.zeros((M, E), tl.float32)
    for start in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, n), TOKENS):
        k = _kernel(scale * tile(q, start, n, q_n, q_d, d, TOKENS, D), lm, PRECISION)
        total = tl.dot(tl.trans(k), tile(v, start, n, v_n, v_d, e, TOKENS, E), total, input_precision=PRECISION)
    parts += (chunk.to(tl.int64) * tl.num_programs(0) + index) * m * e
    store(total, parts, 0, m, e, 1, e, M, E)


@triton.jit
def _total(parts, chunks, step, m, e, M: tl.constexpr, E: tl.constexpr):
    """The sum of all chunks' parts (m, e), in order; several are under way at a time."""
    total = tl.zeros((M, E), tl.float32)
    for chunk in range(0, chunks, 4):
        for i in tl.static_range(4):
            at, exists = rows(parts + (chunk + i) * step, 0, m, e, 1, e, M, E)
            total += tl.load(at, exists & (chunk + i < chunks), 0.0)
    return total


@triton.jit
def _apply_kernel(
    parts, matrix, total, result, chunks, m, e, M: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """t, the sum of the parts, and c = M t."""
    index = tl.program_id(0).to(tl.int64)
    summed = _total(parts + index * m * e, chunks, tl.num_programs(0).to(tl.int64) * m * e, m, e, M, E)
    store(summed, total + index * m * e, 0, m, e, 1, e, M, E)
    inverse = tile(matrix + index * m * m, 0, m, m, 1, m, M, M)
    store(tl.dot(inverse, summed, input_precision=PRECISION), result + index * m * e, 0, m, e, 1, e, M, E)


@triton.jit
def _apply_gradient_kernel(
    parts, matrix, total, result, grad_matrix, chunks, m, e, M: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """dc, the sum of the parts, gives dt = M' dc and dM = dc t'."""
    index = tl.program_id(0).to(tl.int64)
    grad = _total(parts + index * m * e, chunks, tl.num_programs(0).to(tl.int64) * m * e, m, e, M, E)
    transposed = tile(matrix + index * m * m, 0, m, 1, m, m, M, M)
    store(tl.dot(transposed, grad, input_precision=PRECISION), result + index * m * e, 0, m, e, 1, e, M, E)
    t = tile(total + index * m * e, 0, m, e, 1, e, M, E)
    product = tl.dot(grad, tl.trans(t), input_precision=PRECISION)
    store(product, grad_matrix + index * m * m, 0, m, m, 1, m, M, M)


@triton.jit
def _output_kernel(
    q, landmarks, c, y, scale, q_b, q_n, q_h, q_d, l_b, l_h, l_m, l_d, heads, n, m, d, e,
    TOKENS: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """y (B, N, h, e) = K c; what float16 cannot hold becomes its largest value."""
    index, start = tl.program_id(0), tl.program_id(1) * TOKENS
    image, head = (index // heads).to(tl.int64), index % heads
    lm = tile(landmarks + image * l_b + head * l_h, 0, m, l_m, l_d, d, M, D)
    k = _kernel(scale * tile(q + image * q_b + head * q_h, start, n, q_n, q_d, d, TOKENS, D), lm, PRECISION)
    value = tl.dot(k, tile(c + index.to(tl.int64) * m * e, 0, m, e, 1, e, M, E), input_precision=PRECISION)
    if y.dtype.element_ty == tl.float16:
        value = tl.clamp(value, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    store(value, y + (image * n * heads + head) * e, start, n, heads * e, 1, e, TOKENS, E)


@triton.jit
def _exponent(
    query, lm, g, c, v, grad_t, start, g_n, g_d, v_n, v_d, n, m, e, QUERIES: tl.constexpr, VALUES: tl.constexpr,
    TOKENS: tl.constexpr, M: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """X of a tile of tokens, which are QUERIES (of K c), keys with VALUES (of K' v), or both."""
    k = _kernel(query, lm, PRECISION)
    x = tl.zeros((TOKENS, M), tl.float32)
    if QUERIES:
        other = tl.trans(tile(c, 0, m, e, 1, e, M, E))
        x = tl.dot(tile(g, start, n, g_n, g_d, e, TOKENS, E), other, x, input_precision=PRECISION)
    if VALUES:
        other = tl.trans(tile(grad_t, 0, m, e, 1, e, M, E))
        x = tl.dot(tile(v, start, n, v_n, v_d, e, TOKENS, E), other, x, input_precision=PRECISION)
    return x * k


@triton.jit
def _token_gradient_kernel(
    q, landmarks, g, c, v, grad_t, grad_q, scale, q_b, q_n, q_h, q_d, l_b, l_h, l_m, l_d,
    g_b, g_n, g_h, g_d, v_b, v_n, v_h, v_d, heads, n, m, d, e, QUERIES: tl.constexpr, VALUES: tl.constexpr,
    TOKENS: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq = s (X l - X 1 s q)."""
    index, start = tl.program_id(0), tl.program_id(1) * TOKENS
    image, head = (index // heads).to(tl.int64), index % heads
    small = index.to(tl.int64) * m * e
    lm = tile(landmarks + image * l_b + head * l_h, 0, m, l_m, l_d, d, M, D)
    query = scale * tile(q + image * q_b + head * q_h, start, n, q_n, q_d, d, TOKENS, D)
    x = _exponent(
        query, lm, g + image * g_b + head * g_h, c + small, v + image * v_b + head * v_h, grad_t + small, start,
        g_n, g_d, v_n, v_d, n, m, e, QUERIES, VALUES, TOKENS, M, E, PRECISION,
    )  # fmt: skip
    dq = scale * (tl.dot(x, lm, input_precision=PRECISION) - tl.sum(x, 1)[:, None] * query)
    store(dq, grad_q + (image * n * heads + head) * d, start, n, heads * d, 1, d, TOKENS, D)


@triton.jit
def _landmark_gradient_kernel(
    q, landmarks, g, c, v, grad_t, parts, scale, q_b, q_n, q_h, q_d, l_b, l_h, l_m, l_d,
    g_b, g_n, g_h, g_d, v_b, v_n, v_h, v_d, heads, n, m, d, e, QUERIES: tl.constexpr, VALUES: tl.constexpr,
    CHUNK: tl.constexpr, TOKENS: tl.constexpr, M: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dl = X' s q - (X' 1) l of a chunk of tokens: parts (chunks, B h, m, d)."""
    index, chunk = tl.program_id(0), tl.program_id(1)
    image, head = (index // heads).to(tl.int64), index % heads
    small = index.to(tl.int64) * m * e
    q += image * q_b + head * q_h
    lm = tile(landmarks + image * l_b + head * l_h, 0, m, l_m, l_d, d, M, D)
    total, weights = tl.zeros((M, D), tl.float32), tl.zeros((M,), tl.float32)
    for start in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, n), TOKENS):
        query = scale * tile(q, start, n, q_n, q_d, d, TOKENS, D)
        x = _exponent(
            query, lm, g + image * g_b + head * g_h, c + small, v + image * v_b + head * v_h, grad_t + small, start,
            g_n, g_d, v_n, v_d, n, m, e, QUERIES, VALUES, TOKENS, M, E, PRECISION,
        )  # fmt: skip
        total = tl.dot(tl.trans(x), query, total, input_precision=PRECISION)
        weights += tl.sum(x, 0)
    parts += (chunk.to(tl.int64) * tl.num_programs(0) + index) * m * d
    store(total - weights[:, None] * lm, parts, 0, m, d, 1, d, M, D)


@triton.jit
def _total_kernel(parts, result, chunks, m, d, M: tl.constexpr, D: tl.constexpr):
    """The sum of the parts (chunks, B h, m, d)."""
    index = tl.program_id(0).to(tl.int64)
    total = _total(parts + index * m * d, chunks, tl.num_programs(0).to(tl.int64) * m * d, m, d, M, D)
    store(total, result + index * m * d, 0, m, d, 1, d, M, D)


def chunk_of(tokens: int) -> int:
    """Tokens that a program sums: enough programs for a GPU from one image, and at most some tens of parts."""
    return min(max(triton.next_power_of_2(tokens // 64), 2 * TOKENS), 1024)


@operator
def kernel_sums(q: Tensor, landmarks: Tensor, v: Tensor, scale: float) -> Tensor:
    """Parts of K' v: q (B, N, h, d), landmarks (B, h, m, d), v (B, N, h, e) -> (chunks, B, h, m, e)."""
    batch, n, heads, d = q.shape
    m, e, chunk = landmarks.shape[2], v.shape[3], chunk_of(n)
    parts = q.new_empty((triton.cdiv(n, chunk), batch, heads, m, e), dtype=torch.float32)
    wrap_triton(_sums_kernel, parts)[(batch * heads, parts.shape[0])](
        q, landmarks, v, parts, scale, *q.stride(), *landmarks.stride(), *v.stride(), heads, n, m, d, e,
        CHUNK=chunk, TOKENS=TOKENS, M=block(m), D=block(d), E=block(e), PRECISION=PRECISION, num_warps=4,
    )  # fmt: skip
    return parts


@operator
def kernel_apply(parts: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """t, the sum of parts (chunks, B, h, m, e), and c = M t for the matrix (B, h, m, m): two of (B, h, m, e)."""
    chunks, batch, heads, m, e = parts.shape
    total, result = parts.new_empty(parts.shape[1:]), parts.new_empty(parts.shape[1:])
    wrap_triton(_apply_kernel, parts)[(batch * heads,)](
        parts, matrix, total, result, chunks, m, e, M=block(m), E=block(e), PRECISION=PRECISION, num_warps=8
    )
    return total, result


@operator
def kernel_apply_gradient(parts: Tensor, matrix: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """From the parts of dc: dt (B, h, m, e) and dM (B, h, m, m)."""
    chunks, batch, heads, m, e = parts.shape
    result, grad_matrix = parts.new_empty(parts.shape[1:]), torch.empty_like(matrix)
    wrap_triton(_apply_gradient_kernel, parts)[(batch * heads,)](
        parts, matrix, total, result, grad_matrix, chunks, m, e,
        M=block(m), E=block(e), PRECISION=PRECISION, num_warps=8,
    )  # fmt: skip
    return result, grad_matrix


@operator
def kernel_output(q: Tensor, landmarks: Tensor, c: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """K c: q (B, N, h, d), landmarks (B, h, m, d), c (B, h, m, e) -> (B, N, h, e) of this dtype."""
    batch, n, heads, d = q.shape
    m, e = c.shape[2:]
    y = q.new_empty((batch, n, heads, e), dtype=dtype)
    wrap_triton(_output_kernel, y)[(batch * heads, triton.cdiv(n, TOKENS))](
        q, landmarks, c, y, scale, *q.stride(), *landmarks.stride(), heads, n, m, d, e,
        TOKENS=TOKENS, M=block(m), D=block(d), E=block(e), PRECISION=PRECISION, num_warps=4,
    )  # fmt: skip
    return y


@operator
def kernel_token_gradient(
    q: Tensor, landmarks: Tensor, g: Tensor, c: Tensor, v: Tensor, grad_t: Tensor, scale: float,
    queries: bool, values: bool,
) -> Tensor:  # fmt: skip
    """dq (B, N, h, d): tokens q are queries, whose outputs have the gradient g, keys of the values v, or both."""
    batch, n, heads, d = q.shape
    m, e = c.shape[2:]
    grad_q = q.new_empty(q.shape)
    wrap_triton(_token_gradient_kernel, q)[(batch * heads, triton.cdiv(n, TOKENS))](
        q, landmarks, g, c, v, grad_t, grad_q, scale, *q.stride(), *landmarks.stride(), *g.stride(), *v.stride(),
        heads, n, m, d, e, QUERIES=queries, VALUES=values,
        TOKENS=TOKENS, M=block(m), D=block(d), E=block(e), PRECISION=PRECISION, num_warps=8,
    )  # fmt: skip
    return grad_q


@operator
def kernel_landmark_gradient(
    q: Tensor, landmarks: Tensor, g: Tensor, c: Tensor, v: Tensor, grad_t: Tensor, scale: float,
    queries: bool, values: bool,
) -> Tensor:  # fmt: skip
    """Parts of dl (chunks, B, h, m, d), with tokens q as in :func:`kernel_token_gradient`."""
    batch, n, heads, d = q.shape
    m, e, chunk = landmarks.shape[2], v.shape[3], chunk_of(n)
    parts = q.new_empty((triton.cdiv(n, chunk), batch, heads, m, d), dtype=torch.float32)
    # one stage and small tiles: with more, registers spill
    wrap_triton(_landmark_gradient_kernel, q)[(batch * heads, parts.shape[0])](
        q, landmarks, g, c, v, grad_t, parts, scale, *q.stride(), *landmarks.stride(), *g.stride(), *v.stride(),
        heads, n, m, d, e, QUERIES=queries, VALUES=values, CHUNK=chunk,
        TOKENS=TOKENS // 2, M=block(m), D=block(d), E=block(e), PRECISION=PRECISION, num_warps=8, num_stages=1,
    )  # fmt: skip
    return parts


@operator
def kernel_total(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of parts (chunks, B, h, m, d) -> (B, h, m, d) of this dtype."""
    chunks, batch, heads, m, d = parts.shape
    result = parts.new_empty(parts.shape[1:], dtype=dtype)
    wrap_triton(_total_kernel, parts)[(batch * heads,)](
        parts, result, chunks, m, d, M=block(m), D=block(d), num_warps=8
    )
    return result


class _NystromProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor | None, landmarks: Tensor, v: Tensor, matrix: Tensor, scale: float) -> Tensor:
        total, c = kernel_apply(kernel_sums(q if k is None else k, landmarks, v, scale), matrix)
        ctx.save_for_backward(q, k, landmarks, v, matrix, total, c)
        ctx.scale = scale
        return kernel_output(q, landmarks, c, scale, v.dtype)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, landmarks, v, matrix, total, c = ctx.saved_tensors
        scale = ctx.scale
        grad_t, grad_matrix = kernel_apply_gradient(kernel_sums(q, landmarks, g, scale), matrix, total)
        shared = g, c, v, grad_t, scale
        grad_v = kernel_output(q if k is None else k, landmarks, grad_t, scale, v.dtype)
        grad_q = kernel_token_gradient(q, landmarks, *shared, True, k is None)
        parts, grad_k = kernel_landmark_gradient(q, landmarks, *shared, True, k is None), None
        if k is not None:
            grad_k = kernel_token_gradient(k, landmarks, *shared, False, True)
            parts = torch.cat((parts, kernel_landmark_gradient(k, landmarks, *shared, False, True)))
        return grad_q, grad_k, kernel_total(parts, landmarks.dtype), grad_v, grad_matrix, None


def nystrom_product(
    q: Tensor, landmarks: Tensor, v: Tensor, matrix: Tensor, k: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    """``K M K' v`` -> (B, N, h, e) in v's dtype; K' is of the keys k, if there are any, otherwise of q.

    q and k (B, N, h, d), multiplied by ``scale``, landmarks (B, h, m, d), v (B, N, h, e), the matrix M (B, h, m, m)
    contiguous in float32. Any strides, float32, float16 or bfloat16.
    """
    return _NystromProduct.apply(q, k, landmarks, v, matrix, scale)
