"""The pseudo-inverse of the landmarks' kernel matrix: gram matrix, scale, Newton's iteration and normalisation.

A program holds a matrix of at most 64 x 64 in registers through all steps. ``A = k(l, l)``; SOFT++ gives
``D^(-1/2) A^+ D^(-1/2)`` with D = diag(A 1), SOFT ``(A + 0.01 I)^+``. As A is symmetric, so is all that follows.
Only the symmetric part of the gradient of A reaches the landmarks; a symmetric G stays so through Newton's steps.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import PRECISION, block, operator, wrap_triton
from .tiles import at_least

MAX_LANDMARKS = 64
WARPS = 8
# On AMD a gradient's matrices stay in registers, of which warps of 64 threads have enough: barriers do not order there
# what threads hand to each other through memory. On NVIDIA's GPUs they lie in memory, as registers would spill.
REGISTERS = bool(torch.version.hip)


@triton.jit
def _gram(landmarks, stride_m, stride_d, m, d, M: tl.constexpr):
    """A (M, M) of landmarks (m, d), by differences: exactly symmetric, its diagonal exactly 1; 0 beyond m."""
    row, column = tl.arange(0, M)[:, None], tl.arange(0, M)[None, :]
    squared = tl.zeros((M, M), tl.float32)
    for i in range(d):
        left = tl.load(landmarks + row * stride_m + i * stride_d, row < m, 0.0).to(tl.float32)
        right = tl.load(landmarks + column * stride_m + i * stride_d, column < m, 0.0).to(tl.float32)
        squared += (left - right) * (left - right)
    return tl.where((row < m) & (column < m), tl.exp(at_least(-squared / 2, -40.0)), 0.0)


@triton.jit
def _scale(stats, head, heads, NORMALIZE: tl.constexpr, M: tl.constexpr):
    """alpha of a matrix and the norm that it comes from, given its image's stats (heads, 3, M).

    SOFT: 1.8 / |A|_1^2. SOFT++: one for all heads, as ops.newton.guarded_scale words it.
    """
    column = tl.arange(0, M)
    if NORMALIZE:
        norm = tl.max(tl.load(stats + column), 0)
        for other in range(1, heads):
            norm = tl.maximum(norm, tl.max(tl.load(stats + other * 3 * M + column), 0))
        first, halvings = 2 / (norm * norm), tl.arange(0, 16)
        alphas = (first * tl.exp2(-halvings.to(tl.float32)))[:, None]
        worst = tl.zeros((16,), tl.float32)  # |I - alpha A A|_1 of each candidate
        for other in range(heads):
            rows = tl.load(stats + (other * 3 + 1) * M + column)[None, :]
            diagonal = tl.load(stats + (other * 3 + 2) * M + column)[None, :]
            worst = tl.maximum(worst, tl.max(tl.abs(1 - alphas * diagonal) + alphas * (rows - diagonal), 1))
        halved = tl.min(tl.where((worst <= 1.01) | (halvings == 10), halvings, 16), 0).to(tl.float32)
        alpha = first * tl.where(halved > 0, tl.exp2(-halved), 0.95)
    else:
        norm = tl.max(tl.load(stats + head * 3 * M + column), 0)
        alpha = 1.8 / (norm * norm)
    return alpha, norm


@triton.jit
def _square(m, M: tl.constexpr):
    """Offsets of an m x m matrix in a tile (M, M), and which of them exist."""
    row, column = tl.arange(0, M)[:, None], tl.arange(0, M)[None, :]
    return row * m + column, (row < m) & (column < m)


@triton.jit
def _padded(M: tl.constexpr):
    """Offsets of an M x M matrix."""
    return tl.arange(0, M)[:, None] * M + tl.arange(0, M)[None, :]


@triton.jit
def _stats_kernel(landmarks, stats, stride_b, stride_h, stride_m, stride_d, heads, m, d, M: tl.constexpr):
    """A 1, A A 1 and diag(A A) of every matrix: all that the scale of an image needs of its heads."""
    index, column = tl.program_id(0), tl.arange(0, M)
    start = landmarks + (index // heads).to(tl.int64) * stride_b + index % heads * stride_h
    a = _gram(start, stride_m, stride_d, m, d, M)
    sums = tl.sum(a, 1)
    tl.store(stats + index * 3 * M + column, sums)
    tl.store(stats + (index * 3 + 1) * M + column, tl.sum(a * sums[:, None], 0))
    tl.store(stats + (index * 3 + 2) * M + column, tl.sum(a * a, 0))


@triton.jit
def _newton_kernel(
    landmarks, stats, result, stride_b, stride_h, stride_m, stride_d, heads, m, d,
    ITERATIONS: tl.constexpr, NORMALIZE: tl.constexpr, KEEP: tl.constexpr, M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The inverse (n, m, m); or A and all X before the steps, (n, 1 + ITERATIONS, M, M), where these are to be kept."""
    index, image, head = tl.program_id(0), tl.program_id(0) // heads, tl.program_id(0) % heads
    a = _gram(landmarks + image.to(tl.int64) * stride_b + head * stride_h, stride_m, stride_d, m, d, M)
    alpha, _norm = _scale(stats + image * heads * 3 * M, head, heads, NORMALIZE, M)
    if not NORMALIZE:
        row, column = tl.arange(0, M)[:, None], tl.arange(0, M)[None, :]
        a += tl.where((row == column) & (row < m), 0.01, 0.0)
    if KEEP:
        result += index.to(tl.int64) * (1 + ITERATIONS) * M * M
        tl.store(result + _padded(M), a)
    x = alpha * a
    for _step in range(ITERATIONS):
        if KEEP:
            result += M * M
            tl.store(result + _padded(M), x)
        x = 2 * x - tl.dot(x, tl.dot(a, x, input_precision=PRECISION), input_precision=PRECISION)
    if not KEEP:
        if NORMALIZE:  # rows beyond m have no sum; all others hold a diagonal of 1
            root = tl.rsqrt(tl.maximum(tl.load(stats + index * 3 * M + tl.arange(0, M)), 1.0))
            x *= root[:, None] * root[None, :]
        at, exists = _square(m, M)
        tl.store(result + index.to(tl.int64) * m * m + at, x, exists)


@triton.jit
def _product(left, right, M: tl.constexpr, PRECISION: tl.constexpr):
    """The product of two M x M matrices in memory, 16 columns at a time: whole ones would not fit into registers."""
    row, part = tl.arange(0, M), tl.arange(0, 16)
    result = tl.zeros((M, M), tl.float32)
    for start in range(0, M, 16):
        x = tl.load(left + row[:, None] * M + start + part[None, :])
        y = tl.load(right + (start + part)[:, None] * M + row[None, :])
        result = tl.dot(x, y, result, input_precision=PRECISION)
    return result


@triton.jit
def _share(matrix, value, M: tl.constexpr):
    """Write a matrix to memory for all threads of the program to read; all have read what was there before."""
    tl.debug_barrier()
    tl.store(matrix + _padded(M), value)
    tl.debug_barrier()


@triton.jit
def _reverse_kernel(
    stats, inverse, steps, scratch, grad, grad_a, grad_alpha, heads, m,
    ITERATIONS: tl.constexpr, NORMALIZE: tl.constexpr, CLOSED: tl.constexpr, REGISTERS: tl.constexpr, M: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """From the gradient of the inverse (n, m, m) to those of A (n, M, M) and of alpha (n)."""
    index = tl.program_id(0).to(tl.int64)
    shared_g = scratch + index * 3 * M * M
    shared_xg, shared_y = shared_g + M * M, shared_g + 2 * M * M
    at, exists = _square(m, M)
    g = tl.load(grad + index * m * m + at, exists, 0.0)
    g = (g + tl.trans(g)) / 2
    y = tl.load(inverse + index * m * m + at, exists, 0.0)
    da = tl.zeros((M, M), tl.float32)
    if NORMALIZE:  # Z = R Y R, R = diag(A 1)^(-1/2): dY = R G R, d(A 1) = -(G * Z) 1 / (A 1)
        sums = tl.maximum(tl.load(stats + index * 3 * M + tl.arange(0, M)), 1.0)
        toward = -tl.sum(g * y, 0) / sums  # for every entry in a row; half of it goes to the column, for symmetry
        da += (toward[:, None] + toward[None, :]) / 2
        root = tl.sqrt(sums)
        g /= root[:, None] * root[None, :]
        y *= root[:, None] * root[None, :]
    if CLOSED and REGISTERS:  # dA = -Y G Y
        da -= tl.dot(tl.dot(y, g, input_precision=PRECISION), y, input_precision=PRECISION)
    elif CLOSED:
        _share(shared_g, g, M)
        _share(shared_y, y, M)
        _share(shared_xg, _product(shared_y, shared_g, M, PRECISION), M)
        da -= _product(shared_xg, shared_y, M, PRECISION)
    else:
        steps += index * (1 + ITERATIONS) * M * M
        for step in range(ITERATIONS):  # Y = 2 X - X A X: dX = 2 G - A X G - (A X G)', dA = -X G X
            x = steps + (ITERATIONS - step) * M * M
            if REGISTERS:
                tile = tl.load(x + _padded(M))
                xg = tl.dot(tile, g, input_precision=PRECISION)
                da -= tl.dot(xg, tile, input_precision=PRECISION)
                axg = tl.dot(tl.load(steps + _padded(M)), xg, input_precision=PRECISION)
            else:
                _share(shared_g, g, M)
                _share(shared_xg, _product(x, shared_g, M, PRECISION), M)
                da -= _product(shared_xg, x, M, PRECISION)
                axg = _product(steps, shared_xg, M, PRECISION)
            g = 2 * g - axg - tl.trans(axg)
        alpha, _norm = _scale(stats + index // heads * heads * 3 * M, index % heads, heads, NORMALIZE, M)
        da += alpha * g
        tl.store(grad_alpha + index, tl.sum(g * tl.load(steps + _padded(M))))
    tl.store(grad_a + index * M * M + _padded(M), da)


@triton.jit
def _gram_gradient_kernel(
    landmarks, stats, grad_a, grad_alpha, grad_landmarks, stride_b, stride_h, stride_m, stride_d, heads, m, d,
    NORMALIZE: tl.constexpr, CLOSED: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """From the gradients of A and alpha to that of the landmarks; alpha's goes to the column that has the norm."""
    index = tl.program_id(0)
    image, head = index // heads, index % heads
    row, column = tl.arange(0, M)[:, None], tl.arange(0, M)[None, :]
    start = landmarks + image.to(tl.int64) * stride_b + head * stride_h
    a = _gram(start, stride_m, stride_d, m, d, M)
    w = tl.load(grad_a + index.to(tl.int64) * M * M + _padded(M))
    if not CLOSED:  # alpha = c / |A|_1^2: d|A|_1 = -2 alpha / |A|_1 dalpha, in even parts to what attains the maximum
        alpha, norm = _scale(stats + image * heads * 3 * M, head, heads, NORMALIZE, M)
        total, ties = tl.load(grad_alpha + index), 1.0
        if NORMALIZE:
            total, ties = 0.0, 0.0
            for other in range(heads):
                total += tl.load(grad_alpha + image * heads + other)
                highest = tl.max(tl.load(stats + (image * heads + other) * 3 * M + tl.arange(0, M)), 0)
                ties += tl.where(highest == norm, 1.0, 0.0)
        sums = tl.load(stats + index * 3 * M + tl.arange(0, M))
        attains = tl.where(sums == norm, 1.0, 0.0)
        share = -2 * alpha / norm * total / ties / tl.maximum(tl.sum(attains, 0), 1.0) * attains
        w += (share[:, None] + share[None, :]) / 2
    w *= 2 * a  # l_i takes part in A_ij and A_ji: dl_i = 2 sum over j of dA_ij A_ij (l_j - l_i)
    for i in range(d):
        left = tl.load(start + row * stride_m + i * stride_d, row < m, 0.0).to(tl.float32)
        right = tl.load(start + column * stride_m + i * stride_d, column < m, 0.0).to(tl.float32)
        out = grad_landmarks + (index.to(tl.int64) * m + tl.arange(0, M)) * d + i
        tl.store(out, tl.sum(w * (right - left), 1), tl.arange(0, M) < m)


@operator
def landmark_stats(landmarks: Tensor) -> Tensor:
    """landmarks (B, h, m, d) -> (B, h, 3, M): A 1, A A 1 and diag(A A), padded."""
    batch, heads, m, d = landmarks.shape
    M = block(m)
    stats = landmarks.new_empty((batch, heads, 3, M), dtype=torch.float32)
    wrap_triton(_stats_kernel, stats)[(batch * heads,)](
        landmarks, stats, *landmarks.stride(), heads, m, d, M=M, num_warps=WARPS
    )
    return stats


@operator
def landmark_newton(landmarks: Tensor, stats: Tensor, normalize: bool, iterations: int, keep: bool) -> Tensor:
    """landmarks (B, h, m, d) -> the inverse (B, h, m, m); or A and the X of each step (B, h, 1 + iterations, M, M)."""
    batch, heads, m, d = landmarks.shape
    M = block(m)
    result = stats.new_empty((batch, heads, 1 + iterations, M, M) if keep else (batch, heads, m, m))
    wrap_triton(_newton_kernel, result)[(batch * heads,)](
        landmarks, stats, result, *landmarks.stride(), heads, m, d,
        ITERATIONS=iterations, NORMALIZE=normalize, KEEP=keep, M=M, PRECISION=PRECISION, num_warps=WARPS,
    )  # fmt: skip
    return result


@operator
def landmark_reverse(
    stats: Tensor, inverse: Tensor, steps: Tensor, grad: Tensor, normalize: bool, closed: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of A (B, h, M, M) and of each matrix's alpha (B, h); ``steps`` is not read if ``closed``."""
    batch, heads, m = inverse.shape[:3]
    M = block(m)
    grad_a, grad_alpha = stats.new_empty((batch, heads, M, M)), stats.new_empty((batch, heads))
    scratch = stats.new_empty((batch, heads, 3, M, M))
    wrap_triton(_reverse_kernel, grad)[(batch * heads,)](
        stats, inverse, steps, scratch, grad, grad_a, grad_alpha, heads, m,
        ITERATIONS=0 if closed else steps.shape[2] - 1, NORMALIZE=normalize, CLOSED=closed, REGISTERS=REGISTERS, M=M,
        PRECISION=PRECISION, num_warps=WARPS,
    )  # fmt: skip
    return grad_a, grad_alpha


@operator
def landmark_gradient(
    landmarks: Tensor, stats: Tensor, grad_a: Tensor, grad_alpha: Tensor, normalize: bool, closed: bool
) -> Tensor:
    """The landmarks' gradient (B, h, m, d); that of alpha is not read if ``closed``."""
    batch, heads, m, d = landmarks.shape
    result = landmarks.new_empty(landmarks.shape)
    wrap_triton(_gram_gradient_kernel, result)[(batch * heads,)](
        landmarks, stats, grad_a, grad_alpha, result, *landmarks.stride(), heads, m, d,
        NORMALIZE=normalize, CLOSED=closed, M=block(m), num_warps=WARPS,
    )  # fmt: skip
    return result


class _LandmarkInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, landmarks: Tensor, normalize: bool, iterations: int, backward: str) -> Tensor:
        stats = landmark_stats(landmarks)
        inverse = landmark_newton(landmarks, stats, normalize, iterations, False)
        ctx.save_for_backward(landmarks, stats, inverse)
        ctx.options = normalize, iterations, backward == 'closed'
        return inverse

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        landmarks, stats, inverse = ctx.saved_tensors
        normalize, iterations, closed = ctx.options
        # The iteration runs again, so that nothing of it is kept until now.
        steps = stats if closed else landmark_newton(landmarks, stats, normalize, iterations, True)
        grad_a, grad_alpha = landmark_reverse(stats, inverse, steps, grad.contiguous(), normalize, closed)
        return landmark_gradient(landmarks, stats, grad_a, grad_alpha, normalize, closed), None, None, None


def landmark_inverse(
    landmarks: Tensor, normalize: bool = True, iterations: int = 20, backward: str = 'unrolled'
) -> Tensor:
    """landmarks (B, h, m, d), m at most 64 -> (B, h, m, m) in float32, whatever landmarks are strided or rounded to."""
    return _LandmarkInverse.apply(landmarks, normalize, iterations, backward)
