"""The one table of attentions: what ``attn`` of a backbone may say, and the layer that it means at its place."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from mmsoft.layers import (
    InLineAttention,
    Landmarks,
    LinearAttention,
    LinformerAttention,
    MILAAttention,
    NystromformerAttention,
    PerformerAttention,
    PolaFormerAttention,
    RALAAttention,
    SoftAttention,
    SoftmaxAttention,
)
from mmsoft.ops.checks import choose, flag, whole


class Place(NamedTuple):
    """Where an attention stands: its stage's sizes, and the backbone's options that concern it."""

    dim: int
    heads: int
    ratio: int  # of the landmark window, and of spatial reduction
    local_kernel: int
    grid: tuple[int, int]  # of tokens at the backbone's img_size
    layer: int  # its number in the backbone
    max_keys: int | None
    landmarks: dict[str, Any]  # num_landmarks, sampling, seed
    newton: dict[str, Any]  # newton_iters, newton_backward


def _soft(place: Place, normalize: bool, **options: bool) -> SoftAttention:
    landmarks = Landmarks(place.dim // place.heads, place.ratio, **place.landmarks)
    return SoftAttention(place.dim, place.heads, landmarks, place.local_kernel, normalize, **options, **place.newton)


def _soft_pp(place: Place, *, symmetric: bool = True, scaled: bool = True) -> SoftAttention:
    return _soft(place, True, symmetric=symmetric, scaled=scaled)


def _plain_soft(place: Place, *, symmetric: bool = True, scaled: bool = True) -> SoftAttention:
    return _soft(place, False, symmetric=symmetric, scaled=scaled)


def _softmax(place: Place, *, reduction: bool = False, symmetric: bool = False) -> SoftmaxAttention:
    if reduction and place.ratio == 1:
        raise ValueError("attn 'softmax': reduction=True would have no effect in stage 4, whose window is one token")
    ratio = place.ratio if reduction else 1
    return SoftmaxAttention(place.dim, place.heads, place.max_keys, ratio, symmetric)


def _linformer(place: Place, *, num_mixtures: int = 49) -> LinformerAttention:
    return LinformerAttention(place.dim, place.heads, place.grid, num_mixtures)


def _performer(place: Place, *, num_features: int = 64, seed: int = 0) -> PerformerAttention:
    return PerformerAttention(place.dim, place.heads, num_features, whole('seed', seed, 0) + place.layer)


def _nystromformer(place: Place, *, iterations: int = 6, sampling: str = 'avg_pool') -> NystromformerAttention:
    options: dict[str, Any] = {**place.landmarks, 'sampling': sampling}
    landmarks = Landmarks(place.dim // place.heads, place.ratio, **options)
    return NystromformerAttention(place.dim, place.heads, landmarks, iterations)


def _linear(place: Place, *, kernel: str = 'elu') -> LinearAttention:
    return LinearAttention(place.dim, place.heads, kernel)


def _inline(place: Place, *, kernel: str = 'identity', local: bool = True) -> InLineAttention:
    return InLineAttention(place.dim, place.heads, kernel, local)


def _rala(place: Place) -> RALAAttention:
    return RALAAttention(place.dim, place.heads)


def _mila(place: Place) -> MILAAttention:
    return MILAAttention(place.dim, place.heads)


def _polaformer(place: Place) -> PolaFormerAttention:
    return PolaFormerAttention(place.dim, place.heads, place.grid)


class Attention(NamedTuple):
    """A row of the table.

    ``build`` takes a :class:`Place`; its keyword arguments are the options that a dict may give. ``linear``: whether
    the cost is linear in tokens. ``reads``: those of ``SHARED`` that the layer takes from its place.
    """

    build: Callable[..., nn.Module]
    title: str
    linear: bool = True
    reads: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """What a dict may give, and the defaults."""
        _, *options = inspect.signature(self.build).parameters.values()
        return {option.name: option.default for option in options}


LANDMARKS = ('num_landmarks', 'landmark_seed')
# options of the backbone that only some attentions read
SHARED = (*LANDMARKS, 'landmark_sampling', 'newton_iters', 'newton_backward')
ATTENTIONS = dict(
    soft_pp=Attention(_soft_pp, 'SOFT++', reads=SHARED),
    soft=Attention(_plain_soft, 'SOFT', reads=SHARED),
    softmax=Attention(_softmax, 'softmax', linear=False),
    linformer=Attention(_linformer, 'Linformer'),
    performer=Attention(_performer, 'Performer'),
    nystromformer=Attention(_nystromformer, 'Nyströmformer', reads=LANDMARKS),
    linear=Attention(_linear, 'linear'),
    inline=Attention(_inline, 'InLine'),
    rala=Attention(_rala, 'RALA'),
    mila=Attention(_mila, 'MILA'),
    polaformer=Attention(_polaformer, 'PolaFormer'),
)
Spec = str | Mapping[str, Any]


def register_attention(
    name: str, build: Callable[..., nn.Module], *, title: str = '', linear: bool = True, reads: Collection[str] = ()
) -> None:
    """Make an attention of your own known by name: to ``SOFT(attn=name)``, timm, configs, get_flops and the benchmark.

    ``build(place, **options)`` gives the layer, which is called as ``layer(x, grid)``; see :class:`Attention`.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f'the name of an attention must be letters, digits and underscores; got {name!r}')
    if name in ATTENTIONS:
        raise ValueError(f'attention {name!r} is registered already: choose another name')
    if not callable(build) or not inspect.signature(build).parameters:
        raise ValueError(f'attention {name!r}: build must be a function of a Place, and of options; got {build!r}')
    reads = (reads,) if isinstance(reads, str) else tuple(reads)
    for option in reads:
        choose(f'attention {name!r}: reads', option, SHARED)
    row = Attention(build, title or name, flag(f'attention {name!r}: linear', linear), reads)
    needed = [option for option, default in row.options.items() if default is inspect.Parameter.empty]
    if needed:
        raise ValueError(f'attention {name!r}: every option of its builder needs a default; {needed[0]!r} has none')
    ATTENTIONS[name] = row


def one_a_stage(attn: Spec | Sequence[Spec], last: str | None) -> list[dict[str, Any]]:
    """``attn`` for each of four stages, as dicts with a ``type``; of one for all, the fourth is ``last`` if given."""
    if isinstance(attn, (str, Mapping)):
        specs = [attn] * 3 + [attn if last is None else last]
    elif isinstance(attn, Sequence) and len(attn) == 4:
        specs = list(attn)
    else:
        count = f', which has {len(attn)}' if isinstance(attn, Sequence) else ''
        raise ValueError(f'attn must be a name, a dict with a type, or a list of four of these; got {attn!r}{count}')
    return [_checked(spec) for spec in specs]


def build_attention(spec: Mapping[str, Any], place: Place) -> nn.Module:
    """The layer of a checked ``spec`` at its place."""
    options = dict(spec)
    return ATTENTIONS[options.pop('type')].build(place, **options)


def _checked(spec: Spec) -> dict[str, Any]:
    if not isinstance(spec, (str, Mapping)) or (isinstance(spec, Mapping) and 'type' not in spec):
        raise ValueError(f'attn of a stage must be a name or a dict with a type; got {spec!r}')
    spec = dict(type=spec) if isinstance(spec, str) else dict(spec)
    name = choose('attn', spec['type'], ATTENTIONS)
    defaults = ATTENTIONS[name].options
    for option, value in spec.items():
        if option not in ('type', *defaults):
            known = f'its options are {", ".join(defaults)}' if defaults else 'it has none'
            raise TypeError(f'attn {name!r} has no option {option!r}; {known}')
        if isinstance(defaults.get(option), bool):
            flag(f'attn {name!r}: {option}', value)
    return spec
