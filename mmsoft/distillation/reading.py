"""What a reader tells of a teacher, and what readers of all libraries share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from mmsoft.models.family import Family
from mmsoft.weights.files import IGNORED
from mmsoft.weights.renaming import renamer

STAGES = range(4)
Pairs = Mapping[str, str]


class TeacherError(ValueError):
    """A model that cannot be made linear."""


@dataclass(frozen=True)
class Reading:
    """What a teacher is in our terms.

    Args:
        title: The library and class.
        family: Whose network it is but for the attention.
        options: Of our constructor, ``arch`` a dict without ``inline`` among them.
        weights: By our names, with the teacher's attention.
        names: Our names of weights -> the teacher's.
        converted: Our names of weights whose layout differs from the teacher's.
        classifier: Whether there is a head.
        notes: What differs between the teacher and its copy besides the attention.
        multiple: Sides of pictures for which maps of the two are equal are multiples of it.
    """

    title: str
    family: Family
    options: dict[str, Any]
    weights: dict[str, Tensor]
    names: dict[str, str]
    converted: set[str] = field(default_factory=set)
    classifier: bool = False
    notes: list[str] = field(default_factory=list)
    multiple: int = 1

    @property
    def kind(self) -> type[nn.Module]:
        """Our class."""
        return self.family.classifier if self.classifier else self.family.backbone


def load_whole(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """All of them, or an error that names what does not fit."""
    own = {name: value.shape for name, value in model.state_dict().items() if not name.endswith(IGNORED)}
    found = {name: value.shape for name, value in weights.items() if not name.endswith(IGNORED)}
    odd = next((name for name in (*own, *found) if own.get(name) != found.get(name)), None)
    if odd is not None:
        shapes = [tuple(shapes[odd]) if odd in shapes else 'nothing' for shapes in (own, found)]
        raise TeacherError(f'{odd} of {type(model).__name__} is {shapes[0]}, and in {source} {shapes[1]}')
    model.load_state_dict(weights, strict=False)


def classes_of(title: str, weights: Mapping[str, Tensor]) -> int:
    """Of a classifier; 0 of one without a head, which gives what a head would get."""
    odd = next((name for name in weights if name.startswith('head.') and name.count('.') > 1), None)
    if odd:
        raise TeacherError(f'{title} has {odd}: its head has to be one linear layer, or none')
    return len(weights.get('head.weight', ()))


def depth_of(weights: Mapping[str, Tensor], prefix: str) -> int:
    return sum(name.startswith(f'{prefix}.') and name.endswith('.norm1.weight') for name in weights)


def with_biases(weights: dict[str, Tensor], *projections: str) -> None:
    """Zeros where the teacher has no biases of queries, keys and values."""
    for name in [name for name in weights if name.endswith(tuple(f'.{each}.weight' for each in projections))]:
        bias = name.removesuffix('weight') + 'bias'
        if bias not in weights:
            weights[bias] = weights[name].new_zeros(weights[name].shape[0])


def check_shapes(title: str, weights: Mapping[str, Tensor], ratios: tuple[int, ...]) -> None:
    """MLPs as wide as ours."""
    for i, ratio in enumerate(ratios):
        name = f'stages.{i}.blocks.0.mlp.fc1.weight'
        if name not in weights:
            raise TeacherError(f'{title}: its blocks have no MLP of two linear layers')
        rows, columns = weights[name].shape
        if rows != ratio * columns:
            raise TeacherError(f'{title}: MLPs of {rows / columns:g} times the width; those of ours have {ratio} times')


def drop_path_of(model: nn.Module) -> float:
    """Of the last layer: mmcv and timm call it drop_prob, torchvision p."""
    rates = [getattr(module, 'drop_prob', None) for module in model.modules()]
    rates += [module.p for module in model.modules() if type(module).__name__ == 'StochasticDepth']
    return round(float(max((rate for rate in rates if rate), default=0.0)), 6)


def named(model: nn.Module, pairs: Pairs) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Weights by our names, and the names' originals."""
    rename, weights, names = renamer(pairs.items()), {}, {}
    for name, value in model.state_dict().items():
        if not name.endswith(IGNORED):
            weights[rename(name)], names[rename(name)] = value, name
    return weights, names
