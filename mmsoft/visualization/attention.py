"""What a query attends to: rows of the N x N matrices of any attention, none of which is ever formed.

Heads' outputs are linear in the values: row i of a head's matrix is the gradient of its output at token i with respect
to what is added to a channel of all values. One pass backward gives the row of every head, at the layer's own cost.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from mmsoft.layers import Landmarks, SoftmaxAttention
from mmsoft.ops import landmark_grid, scattered_indices, to_tokens
from mmsoft.ops.checks import check

from .looking import Look, evaluating, heads_of, hooked, look, values_of

# Parameters of what an attention adds beside its matrix: SOFT's convolution, InLine's predicted one, others' own.
LOCAL = re.compile(r'(^|\.)(local|predictor|lepe|dwc)(\.|$)')
CONVOLVED = ('lepe', 'dwc')


def attention_rows(
    layer: nn.Module,
    x: Tensor,
    grid: tuple[int, int],
    queries: Sequence[int],
    *more: Any,
    local: bool = False,
    channel: int = 0,
) -> Tensor:
    """Rows (Q, h, N) of the heads' matrices for tokens number ``queries`` of x (1, N, C), in the order of x.

    ``layer`` is called as ``layer(x, grid, *more)``. With ``local``, the local term of that ``channel`` of a head is in
    them. Where keys are averages or learned mixtures of tokens, each token has its part of them.
    """
    check(x.dim() == 3 and x.shape[0] == 1, 'rows are those of one image (1, N, C)', x=x)
    for query in queries:
        if not 0 <= query < x.shape[1]:
            raise ValueError(f'query {query} is none of {x.shape[1]} tokens')
    heads = heads_of(layer)
    with torch.enable_grad(), evaluating(layer), _carried(layer, heads):
        leaf = x.detach().clone().requires_grad_()
        y = functional_call(layer, {} if local else without_local(layer), (leaf, grid, *more))  # (1, N, C)
        y = y[0].unflatten(-1, (heads, -1))[..., channel].sum(-1)  # each head has an input of its own
        rows = [torch.autograd.grad(y[query], leaf, retain_graph=True)[0][0, :, :heads] for query in queries]
    return torch.stack(rows).transpose(1, 2)


def without_local(layer: nn.Module) -> dict[str, Tensor]:
    """Zeros for the local term's parameters."""
    return {name: torch.zeros_like(value) for name, value in layer.named_parameters() if LOCAL.search(name)}


def _others(layer: nn.Module) -> list[nn.Module]:
    """Modules with parameters that do not see values: all but convolutions of these."""
    parts = layer.named_modules()
    return [part for name, part in parts if name and [*part.parameters(recurse=False)] and not name.endswith(CONVOLVED)]


@contextmanager
def _carried(layer: nn.Module, heads: int) -> Iterator[None]:
    """The layer gives its heads' outputs (..., C), ungated, whose gradient is with respect to values alone.

    What is added to channel h of the input is added to all values of head h.
    """

    def carry(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        added = inputs[0][..., :heads] - inputs[0][..., :heads].detach()
        width = layer.proj.in_features
        added = added.repeat_interleave(width // heads, -1)
        before, values, after = output.detach(), added.to(output.dtype), output[..., :0]
        if module is getattr(layer, 'qkvo', None):
            before, after = before[..., :-width], torch.ones_like(values)
        return torch.cat((before[..., :-width], before[..., -width:] + values, after), -1)

    def constant(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output.detach()

    def unprojected(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return inputs[0]

    def ungated(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        width = layer.proj.in_features
        return torch.cat((output.detach()[..., :-width], torch.ones_like(output[..., -width:])), -1)

    windows = {}

    def keep(module: nn.Module, inputs: tuple[Tensor]) -> None:
        windows['map'] = inputs[0]

    def average(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """A reduced key stands for its window, whatever convolution and norm make of it."""
        pooled = to_tokens(F.avg_pool2d(windows['map'], layer.reduction))
        return output.detach() + pooled - pooled.detach()

    reduces = isinstance(layer, SoftmaxAttention) and layer.reduces
    hooks = dict.fromkeys(_others(layer), constant)  # queries and keys, and what is made of them
    hooks |= {layer.qg: ungated} if hasattr(layer, 'qg') else {}
    hooks |= {values_of(layer): carry, layer.proj: unprojected} | ({layer.reduce_norm: average} if reduces else {})
    with hooked(*hooks.items()), hooked(*([(layer.reduce, keep)] if reduces else []), before=True):
        yield


class AttentionMap(NamedTuple):
    """What a query attends to in a layer."""

    layer: str
    stage: int  # from 1
    query: tuple[float, float]  # of the image: right of its left edge and below its upper one, as shares of it
    token: tuple[int, int]  # row and column of the query's token
    weights: np.ndarray  # (h, H, W): each head's weights of the tokens
    leading: np.ndarray  # (h, T): those of class tokens
    landmarks: np.ndarray  # (m, 2): where landmarks are, as the query; none where the attention has none

    def head(self, head: int | None = None) -> np.ndarray:
        """(H, W): the weights of a head, from 1, or their mean."""
        if head is None:
            return self.weights.mean(0)
        if not 1 <= head <= len(self.weights):
            raise ValueError(f'head {head}: layer {self.layer} has {len(self.weights)}, which count from 1')
        return self.weights[head - 1]


def attention_maps(
    model: nn.Module,
    image: Tensor,
    queries: Iterable[tuple[float, float]] = ((0.5, 0.5),),
    stages: Sequence[int] | None = None,
    every_layer: bool = False,
    local: bool = False,
    shown: tuple[int, int] | None = None,
) -> list[AttentionMap]:
    """Maps of each query in the last layer of each stage, or in ``every_layer``, for an image (1, 3, H, W).

    A query (x, y) is a point of the image, from (0, 0), its upper left corner, to (1, 1). ``shown`` is the part
    (height, width) of the image, at its upper left, that is no padding: points are points of that part.
    """
    queries = [_checked(query) for query in queries]
    sides = shown or (image.shape[2], image.shape[3])
    shares = sides[0] / image.shape[2], sides[1] / image.shape[3]
    looks = look(model, image, stages)
    if not every_layer:
        looks = list({each.stage: each for each in looks}.values())
    found = []
    for each in looks:
        height, width = each.grid
        tokens = [
            (min(int(y * shares[0] * height), height - 1), min(int(x * shares[1] * width), width - 1))
            for x, y in queries
        ]
        numbers = [each.leading + row * width + column for row, column in tokens]
        rows = attention_rows(each.layer, each.x, each.grid, numbers, *each.more, local=local).cpu()
        points = landmark_points(each)
        for query, token, row in zip(queries, tokens, rows, strict=True):
            weights = row[:, each.leading :].unflatten(1, each.grid).numpy()
            leading = row[:, : each.leading].numpy()
            found.append(AttentionMap(each.name, each.stage, query, token, weights, leading, points / shares[::-1]))
    return found


def _checked(query: Sequence[float]) -> tuple[float, float]:
    x, y = query
    if not (0 <= x <= 1 and 0 <= y <= 1):
        raise ValueError(
            f'query {x:g} {y:g} is outside of the picture: both are shares of it, from 0 0 (upper left) to 1 1'
        )
    return float(x), float(y)


def landmark_points(seen: Look) -> np.ndarray:
    """Centres (m, 2) of a layer's landmarks, x and y as shares of its grid; (0, 2) where it has none."""
    landmarks = getattr(seen.layer, 'landmarks', None)
    if not isinstance(landmarks, Landmarks):
        return np.empty((0, 2))
    (height, width), window = seen.grid, landmarks.ratio
    rows, columns = landmark_grid(height, width, window, landmarks.num_landmarks)
    count = rows * columns
    if landmarks.sampling in ('first', 'random'):
        picked = np.arange(count)
        if landmarks.sampling == 'random':
            picked = scattered_indices(height * width, count, landmarks.seed, torch.device('cpu')).numpy()
        return np.stack(((picked % width + 0.5) / width, (picked // width + 0.5) / height), 1)
    # whole windows leave a rest at the right and bottom; the bounded grid is of the whole map
    whole = (rows, columns) == (max(height // window[0], 1), max(width // window[1], 1))
    steps = (window[0] / height, window[1] / width) if whole else (1 / rows, 1 / columns)
    y, x = np.mgrid[:rows, :columns].reshape(2, -1) + 0.5
    return np.minimum(np.stack((x * steps[1], y * steps[0]), 1), 1)
