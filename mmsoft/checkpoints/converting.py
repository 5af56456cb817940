"""Files of weights from the authors' names to ours and back."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from mmsoft.models.backbone import PYRAMID
from mmsoft.models.family import FAMILIES, Family, our_family, published_family
from mmsoft.weights import CheckpointError, fit_weights, read_state_dict
from mmsoft.weights.fitting import take_prefix
from mmsoft.weights.writing import WRITTEN, to_bytes, write

from .architecture import Architecture, read_architecture

PARTS = ('classifier', 'backbone')


def convert(
    source: str | Path, target: str | Path, *, part: str | None = None, trust: bool = False, force: bool = False
) -> str:
    """Write the authors' weights with our names, or ours with theirs; what was done, as a table.

    The names in ``source`` tell the direction. ``part`` keeps the whole classifier or the backbone
    alone; None, what there is. Nothing is written unless the result fits the model that it describes
    and translates back exactly.
    """
    target = Path(target).expanduser()
    _check_target(target, force)
    weights = read_state_dict(source, trust)
    count = len(weights)
    if any(name.startswith('backbone.') for name in weights):
        weights = take_prefix(weights, 'backbone.', str(source))
    family, to_ours = _find_family(weights, str(source))
    if not to_ours:  # most authors' models have no pyramid, and no name for it
        nameless = {name for name in family.to_published(weights) if name.startswith(PYRAMID)}
        weights = {name: value for name, value in weights.items() if name not in nameless}
    outside = count - len(weights)
    there, back = (family.to_ours, family.to_published) if to_ours else (family.to_published, family.to_ours)
    result = there(weights)
    if not _same(back(result), weights):
        raise CheckpointError(f'the names in {str(source)!r} do not translate back: is it a mixture of two models?')
    ours = select_part(result if to_ours else weights, part, family)
    architecture = verify(ours, str(source))
    result = ours if to_ours else there(ours)
    write(to_bytes(result, target.suffix), target)
    left_out = f", of which {outside} tensors outside of the authors' model are left out" if outside else ''
    rows = [
        ('source', f'{source}{left_out}'),
        ('direction', "the authors' names -> ours" if to_ours else "our names -> the authors'"),
        *architecture.rows(),
        ('tensors', f'{len(result)}, {sum(value.numel() for value in result.values()) / 1e6:.2f} M numbers'),
        ('written', f'{target} ({target.stat().st_size / 2**20:.1f} MiB)'),
    ]
    return '\n'.join(f'{label:<13}{text}' for label, text in rows)


def select_part(weights: Mapping[str, Tensor], part: str | None, family: Family) -> dict[str, Tensor]:
    """Weights of a classifier or backbone of this family, with our names, cut to ``part``."""
    if part == 'backbone':
        return {name: value for name, value in weights.items() if name.split('.')[0] not in family.head}
    if part == 'classifier':
        lacking = [name for name in family.head if not any(other.split('.')[0] == name for other in weights)]
        if lacking:
            raise CheckpointError(
                f'--part classifier: the weights have no {", ".join(lacking)}; of a backbone, --part backbone is all'
            )
    return dict(weights)


def verify(weights: Mapping[str, Tensor], source: str) -> Architecture:
    """The architecture of weights with our names; raise unless they load strictly into a model of it."""
    architecture = read_architecture(weights)
    with torch.device('meta'):
        model = architecture.build()
    fit_weights(model, weights, source=source)
    return architecture


def _find_family(weights: Mapping[str, Tensor], source: str) -> tuple[Family, bool]:
    """The family of these weights, and whether the names are the authors'."""
    published = published_family(weights)
    family = published or our_family(weights)
    if family:
        return family, bool(published)
    known = '; '.join(f'{family.title}: {" or ".join(filter(None, family.example))}' for family in FAMILIES.values())
    raise CheckpointError(
        f"{source!r} holds neither the authors' names of known weights nor ours ({known}); "
        f'its first name is {next(iter(weights))!r}'
    )


def _same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    """Equal numbers, invalid ones included, in equal shapes."""
    return first.keys() == second.keys() and all(
        value.shape == second[name].shape and torch.allclose(value, second[name], rtol=0, atol=0, equal_nan=True)
        for name, value in first.items()
    )


def _check_target(target: Path, force: bool) -> None:
    if target.suffix not in WRITTEN:
        raise CheckpointError(f'the target must end in {" or ".join(WRITTEN)}; got {str(target)!r}')
    if not target.parent.is_dir():
        raise CheckpointError(f'the folder {str(target.parent)!r} of the target does not exist: make it first')
    if target.is_dir():
        raise CheckpointError(f'the target {str(target)!r} is a folder: name a file')
    if target.exists() and not force:
        raise CheckpointError(f'the target {str(target)!r} exists already: name another, or replace it with --force')
