"""A linear map of tokens with its bias and GELU in one pass; and GELU's gradient with the bias's in another.

``a = gelu(h)``, ``h = x W' + b``. In float32 a product is three of tensor cores, in half precision one. Given g,
``dh = g gelu'(h)``, db sums dh over chunks of tokens and then in order; torch makes ``dx = dh W`` and ``dW = dh' x``.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.jit import JITFunction

from .launch import PRECISION, operator, wrap_triton
from .residual import channel_total
from .tiles import store, tile

ROWS, COLUMNS, DEPTH = 64, 64, 32  # of a tile of the product, and of a step of it
CHUNK = 256  # tokens whose gradients a program sums


@triton.jit
def _gelu(h, TANH: tl.constexpr):
    if TANH:
        a = h * tl.sigmoid(1.5957691216057308 * (h + 0.044715 * h * h * h))
    else:
        a = 0.5 * h * (1 + tl.erf(h * 0.7071067811865476))
    return a


@triton.jit
def _slope(h, TANH: tl.constexpr):
    """Its derivative."""
    if TANH:
        gate = tl.sigmoid(1.5957691216057308 * (h + 0.044715 * h * h * h))
        slope = gate + h * gate * (1 - gate) * 1.5957691216057308 * (1 + 3 * 0.044715 * h * h)
    else:
        slope = 0.5 * (1 + tl.erf(h * 0.7071067811865476)) + h * tl.exp(-0.5 * h * h) * 0.3989422804014327
    return slope


@triton.jit
def _linear_gelu_kernel(
    x, weight, bias, a, hidden, x_n, w_k, n, c, k, TANH: tl.constexpr, KEEP: tl.constexpr, WIDEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile of a (n, k), and of h if it is to be kept; WIDEN: products in float32 whatever x (n, c) is."""
    across = tl.cdiv(k, COLUMNS)
    start, first = (tl.program_id(0) // across).to(tl.int64) * ROWS, tl.program_id(0) % across * COLUMNS
    row, column, step = start + tl.arange(0, ROWS), first + tl.arange(0, COLUMNS), tl.arange(0, DEPTH)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for depth in range(0, c, DEPTH):
        there = depth + step < c
        left = tl.load(x + row[:, None] * x_n + (depth + step)[None, :], (row < n)[:, None] & there[None, :], 0.0)
        at = weight + column[None, :] * w_k + (depth + step)[:, None]
        right = tl.load(at, (column < k)[None, :] & there[:, None], 0.0)
        if WIDEN:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    total += tl.load(bias + column, column < k, 0.0).to(tl.float32)[None, :]
    if KEEP:
        store(total, hidden + first, start, n, k, 1, k - first, ROWS, COLUMNS)
    store(_gelu(total, TANH), a + first, start, n, k, 1, k - first, ROWS, COLUMNS)


@triton.jit
def _gelu_gradient_kernel(
    hidden, g, dh, parts, g_n, n, k, TANH: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """dh (n, k) of a chunk of tokens and some columns, and parts (chunks, 1, k) of db."""
    chunk, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * COLUMNS
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, n), ROWS):
        h = tile(hidden + first, start, n, k, 1, k - first, ROWS, COLUMNS)
        value = _slope(h, TANH) * tile(g + first, start, n, g_n, 1, k - first, ROWS, COLUMNS)
        store(value, dh + first, start, n, k, 1, k - first, ROWS, COLUMNS)
        total += tl.sum(value, 0)
    column = first + tl.arange(0, COLUMNS)
    tl.store(parts + chunk * k + column, total, column < k)


@operator
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool, keep: bool) -> tuple[Tensor, Tensor]:
    """x (n, C), weight (K, C), bias (K) -> gelu(h) (n, K), and h, which is empty unless to be kept."""
    (n, c), k = x.shape, len(weight)
    x, weight = _rows(x), _rows(weight)
    a, hidden = x.new_empty((n, k)), x.new_empty((n, k) if keep else (0,))
    wrap_triton(_linear_gelu_kernel, x)[(triton.cdiv(n, ROWS) * triton.cdiv(k, COLUMNS),)](
        x, weight, bias, a, hidden, x.stride(0), weight.stride(0), n, c, k, TANH=tanh, KEEP=keep,
        # the interpreter knows no products of bfloat16
        WIDEN=x.dtype == torch.float32 or not isinstance(_linear_gelu_kernel, JITFunction),
        ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH, PRECISION=PRECISION, num_warps=4,
    )  # fmt: skip
    return a, hidden


@operator
def gelu_gradient(hidden: Tensor, g: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """dh (n, K), and parts (chunks, 1, K) of its sum over tokens."""
    n, k = hidden.shape
    g, dh = _rows(g), torch.empty_like(hidden)
    parts = hidden.new_empty((triton.cdiv(n, CHUNK), 1, k), dtype=torch.float32)
    wrap_triton(_gelu_gradient_kernel, g)[(len(parts), triton.cdiv(k, COLUMNS))](
        hidden, g, dh, parts, g.stride(0), n, k, TANH=tanh, CHUNK=CHUNK, ROWS=ROWS // 2, COLUMNS=COLUMNS, num_warps=4
    )
    return dh, parts


def _rows(x: Tensor) -> Tensor:
    """x with the values of a row one after another."""
    return x if x.stride(1) == 1 else x.contiguous()


def _setup(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    x, weight, _bias, tanh, _keep = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.tanh = tanh
    ctx.set_materialize_grads(False)


def _backward(ctx, g: Tensor | None, _grad_hidden: Tensor | None) -> tuple[Tensor | None, ...]:
    if g is None:
        return None, None, None, None, None
    x, weight, hidden = ctx.saved_tensors
    dh, parts = gelu_gradient(hidden, g, ctx.tanh)
    return dh @ weight, dh.t() @ x, channel_total(parts, weight.dtype)[0], None, None


linear_gelu.register_autograd(_backward, setup_context=_setup)
