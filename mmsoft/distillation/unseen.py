"""What no weight of a softmax transformer tells: its activations, strides and paddings, and scales of attentions."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

# Modules without parts that the copies have as well, or that do nothing in evaluation.
_KNOWN = (nn.Linear, nn.LayerNorm, nn.Dropout, nn.Identity, nn.Softmax, nn.Flatten, nn.AdaptiveAvgPool2d)
_KNOWN_BY_NAME = ('DropPath', 'StochasticDepth', 'PatchDropout', 'Permute', 'FastAdaptiveAvgPool')


def odd_part(model: nn.Module, base: type[nn.Module]) -> str | None:
    """What a copy of a ``base`` would compute otherwise: the part, and what it should be; None of a plain one."""
    if type(model).forward is not base.forward:
        return f'{type(model).__name__} has a forward of its own, which the copy would not have'
    leaves = ((name, module) for name, module in model.named_modules() if next(module.children(), None) is None)
    return next((f'{name} is {odd}' for name, module in leaves if (odd := _odd(module))), None)


def _odd(module: Any) -> str:
    kind = type(module).__name__
    if isinstance(module, (nn.Conv2d, nn.Unfold)):
        kernel, stride, padding, dilation = (
            _sides(getattr(module, key)) for key in ('kernel_size', 'stride', 'padding', 'dilation')
        )
        if (stride, padding, dilation) == (kernel, (0, 0), (1, 1)):
            return ''
        return (
            f'of {kernel} pixels with stride {stride}, padding {padding} and dilation {dilation}; patches of the copy '
            'lie side by side'
        )
    if kind == 'AdaptivePadding':
        return '' if module.padding == 'corner' else f'padding={module.padding!r}; the copy has padding="corner"'
    if kind == 'GELU' and getattr(module, 'approximate', 'none') == 'none':
        return ''
    if isinstance(module, _KNOWN) or kind in _KNOWN_BY_NAME:
        return ''
    return f'{module}; MLPs of the copy have the exact GELU, and its norms are LayerNorms'


def _sides(value: int | str | tuple[int, ...]) -> Any:
    return (value, value) if isinstance(value, int) else value


def scale_factors(model: nn.Module, names: Mapping[str, str], widths: Mapping[str, int]) -> dict[str, float]:
    """Our prefixes of attentions -> their scale over that of the copy, where these differ.

    names: ours of weights -> the teacher's; widths: of the heads of attentions, by our prefixes.
    """
    factors = {}
    for prefix, width in widths.items():
        attention = model.get_submodule(names[f'{prefix}qkv.weight'].removesuffix('.qkv.weight'))
        scale = getattr(attention, 'scale', None)
        if scale is not None and not getattr(attention, 'fused_attn', False):  # fused ones do not read it
            factor = scale * math.sqrt(width)
            if not math.isclose(factor, 1.0):
                factors[prefix] = factor
    return factors


def scale_queries(weights: dict[str, Tensor], factors: Mapping[str, float]) -> None:
    """Put the scales of attentions into the queries' projections."""
    for prefix, factor in factors.items():
        for name in (f'{prefix}qkv.weight', f'{prefix}qkv.bias'):
            value = weights[name].clone()
            value[: value.shape[0] // 3] *= factor
            weights[name] = value
