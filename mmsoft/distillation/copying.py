"""A linear model of a softmax one: everything but the attentions' own mathematics is copied."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmsoft.models.attentions import ATTENTIONS, one_a_stage
from mmsoft.ops.checks import choose
from mmsoft.weights.files import IGNORED

from .reading import Reading, TeacherError

OUTCOMES = dict(
    copied='as they are',
    converted='in another layout: queries, keys and values, patch merging, position tables',
    new="at random or 0: what softmax attention has not; InLine's local term starts as 0",
    dropped="the teacher's alone: tables of relative positions, spatial reduction",
)
NEW_HEAD = (
    "the authors' classifier reads a class token, which this backbone has not: the head is new. Train it with labels, "
    'or take the backbone'
)
WHOLE = ('InLine-PVT', 'InLine-DeiT')  # families whose layers are all linear
PROJECTIONS = ('q', 'k', 'v')


@dataclass(frozen=True)
class Copy:
    """Weights for a linear model, and their names by outcome; of ``new`` ones, those that start at 0 are here."""

    weights: dict[str, Tensor]
    names: dict[str, list[str]]
    attentions: list[str]

    def __str__(self) -> str:
        """A table."""
        lines = [f'{"outcome":<11}{"tensors":>8}  meaning']
        lines += [f'{outcome:<11}{len(self.names[outcome]):>8}  {meaning}' for outcome, meaning in OUTCOMES.items()]
        return '\n'.join([*lines, f'{len(self.attentions)} attentions are linear now'])


def linear_options(reading: Reading, inline: Sequence[int] | None = None, attention: str = 'inline') -> dict[str, Any]:
    """Options of our constructor for the linear model.

    ``inline``: how many layers of each stage become linear, by default as in the paper of the family. ``attention``:
    which attention they get; only SOFT's frame has others than InLine.
    """
    options = dict(reading.options)
    depths = tuple(options['arch']['depths'])
    if inline is not None and len(inline) != len(depths):
        raise TeacherError(f'--inline for {reading.family.title} takes {len(depths)} numbers; got {tuple(inline)}')
    if 'attn' in options:
        return options | dict(attn=_specs(reading, inline, choose('attention', attention, ATTENTIONS)))
    if attention != 'inline':
        raise TeacherError(f'{reading.family.title} has InLine attention alone; got --attention {attention}')
    arch = {key: value for key, value in options['arch'].items() if key != 'inline'}
    if reading.family.title in WHOLE and inline is not None and tuple(inline) != depths:
        raise TeacherError(f'--inline: all layers of {reading.family.title}, {depths}, become linear: leave it out')
    if inline is None:
        named = [own for own in reading.family.archs.values() if own._asdict() | arch == own._asdict()]
        inline = named[0].inline if named else None
    return options | dict(arch=arch if inline is None else dict(arch, inline=tuple(inline)))


def with_new_head(
    reading: Reading, options: Mapping[str, Any], classes: int | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The classifier of a linear backbone, and the weights of its head, which are new."""
    kind = reading.family.classifier
    own = {name: value for name, value in options.items() if name != 'out_indices'}
    own |= {} if classes is None else dict(num_classes=classes)
    head = {name: value for name, value in kind(**own).state_dict().items() if name.startswith('head.')}
    return dict(type=f'mmsoft.{kind.__name__}', **own), head


def _specs(reading: Reading, inline: Sequence[int] | None, attention: str) -> list[dict[str, Any]]:
    """What ``attn`` of SOFT's frame says of each stage: stage 4 stays softmax, as in the paper, unless asked for."""
    if ATTENTIONS[attention].linear is False:
        raise TeacherError(f'--attention {attention} is not linear; choose another one')
    depths = tuple(reading.options['arch']['depths'])
    specs = one_a_stage(reading.options['attn'], 'softmax' if reading.options['pyramid'] else None)
    last = 0 if reading.options['pyramid'] else depths[3]
    chosen = (*depths[:3], last) if inline is None else tuple(inline)
    if len(chosen) != 4 or any(some not in (0, depth) for some, depth in zip(chosen, depths, strict=True)):
        raise TeacherError(f"--inline for SOFT's frame is 0 or all of a stage's layers {depths}; got {chosen}")
    pairs = zip(specs, chosen, strict=True)
    return [dict(type=attention) if some and spec['type'] == 'softmax' else spec for spec, some in pairs]


def copy_weights(reading: Reading, model: nn.Module, teacher: nn.Module) -> Copy:
    """What the linear ``model`` takes over; raise unless everything but attentions has its place in it."""
    own = {name: value for name, value in model.state_dict().items() if not name.endswith(IGNORED)}
    weights, names = {}, {outcome: [] for outcome in OUTCOMES}
    attentions = []
    for block in sorted({name.rpartition('.attn.')[0] for name in own if '.attn.' in name}):
        prefix = f'{block}.attn.'
        theirs, ours = _part(reading.weights, prefix), _part(own, prefix)
        shapes = [{name: value.shape for name, value in part.items()} for part in (theirs, ours)]
        if shapes[0] == shapes[1] and not _differ(block, teacher, model):
            continue
        attentions.append(block)
        found = _projected(theirs, ours)
        weights |= {prefix + name: value for name, value in found.items()}
        names['converted'] += [prefix + name for name in found]
        names['new'] += [prefix + name for name in ours if name not in found]
        kept = {'proj.weight', 'proj.bias', 'q.weight', 'q.bias'}
        names['dropped'] += [prefix + name for name in theirs if not _is_projection(name) and name not in kept]
    if not attentions:
        raise TeacherError(f'{reading.title} has no softmax attention among the layers that would become linear')
    changed = tuple(f'{block}.attn.' for block in attentions)
    for name, value in reading.weights.items():
        if not name.startswith(changed):
            outcome = 'converted' if name in reading.converted else 'copied'
            if name in own:
                weights[name] = value
                names[outcome].append(name)
            elif _is_spare(name, own):
                names['dropped'].append(name)
            else:
                raise TeacherError(f'{reading.title} has {reading.names[name]}, for which {_kind(model)} has no place')
    _check(reading, own, weights, names['new'], _kind(model))
    _check_norms(reading, model, teacher)
    weights |= {name: torch.zeros_like(own[name]) for name in names['new'] if '.attn.predictor.2.' in name}
    copied = {name: value.detach().clone() for name, value in weights.items()}
    return Copy(copied, names, attentions)


def _differ(block: str, teacher: nn.Module, model: nn.Module) -> bool:
    """Whether attentions of two models of ours are of different kinds, whatever their weights."""
    place = f'{block}.attn'
    return (
        _has(teacher, place)
        and type(teacher.get_submodule(place)).__module__.startswith('mmsoft.')
        and (type(teacher.get_submodule(place)) is not type(model.get_submodule(place)))
    )


def _kind(model: nn.Module) -> str:
    return type(model).__name__


def _part(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _is_projection(name: str) -> bool:
    return name.split('.')[0] in ('q', 'k', 'v', 'kv', 'qkv')


def _projected(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Queries, keys, values and the projection of the output, stacked as the linear attention has them."""
    found = {}
    for kind in ('weight', 'bias'):
        parts = _split(theirs, kind)
        for name in [name for name in ours if name.endswith(f'.{kind}')]:
            stack = name.split('.')[0]
            if name.count('.') == 1 and stack in ('q', 'k', 'v', 'kv', 'qkv'):
                found[name] = torch.cat([parts[letter] for letter in stack])
        found[f'proj.{kind}'] = theirs[f'proj.{kind}']
    return found


def _split(theirs: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """``q``, ``k`` and ``v``; one projection may serve for queries and keys."""
    if f'qkv.{kind}' in theirs:
        return dict(zip(PROJECTIONS, theirs[f'qkv.{kind}'].chunk(3), strict=True))
    q, kv = theirs[f'q.{kind}'], theirs[f'kv.{kind}']
    keys, values = (q, kv) if len(kv) == len(q) else kv.chunk(2)
    return dict(q=q, k=keys, v=values)


def _is_spare(name: str, own: Mapping[str, Tensor]) -> bool:
    """Stages and norms behind the last output, which are not built."""
    part = '.'.join(name.split('.')[:2]) if name.startswith('stages.') else name.split('.')[0]
    return part in ('norm', 'head', *(f'stages.{i}' for i in range(4))) and not any(
        n.startswith(f'{part}.') for n in own
    )


def _check(
    reading: Reading, own: Mapping[str, Tensor], weights: Mapping[str, Tensor], new: Sequence[str], kind: str
) -> None:
    """Raise unless the weights are all that the model has, in its shapes."""
    for name, value in own.items():
        if name not in weights and name not in new:
            raise TeacherError(f'{reading.title} has nothing for {name} of {kind}')
        if name in weights and weights[name].shape != value.shape:
            shapes = tuple(weights[name].shape), tuple(value.shape)
            raise TeacherError(
                f'{name} is {shapes[0]} in {reading.title}, but {shapes[1]} in {kind}: the copy has to have the '
                "teacher's widths"
            )


def _check_norms(reading: Reading, model: nn.Module, teacher: nn.Module) -> None:
    """Raise unless norms add the same to their variances: no weight shows it."""
    for name, theirs in reading.names.items():
        place, _, end = name.rpartition('.')
        ours = model.get_submodule(place) if end == 'weight' and _has(model, place) else None
        eps = getattr(teacher.get_submodule(theirs.rpartition('.')[0]), 'eps', None)
        if isinstance(ours, nn.LayerNorm) and eps is not None and eps != ours.eps:
            raise TeacherError(f'{theirs} of {reading.title} has eps={eps}; {place} of {_kind(model)} has {ours.eps}')


def _has(model: nn.Module, place: str) -> bool:
    try:
        model.get_submodule(place)
    except AttributeError:
        return False
    return True
