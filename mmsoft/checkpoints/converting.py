"""Files of SOFT weights from the authors' names to ours and back."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from .architecture import Architecture, read_architecture
from .files import read_state_dict
from .loading import CLASSIFIER_PARTS, fit_weights, take_prefix
from .messages import CheckpointError
from .soft_names import convert_published_soft, convert_to_published_soft, is_our_soft, is_published_soft
from .writing import WRITTEN, to_bytes, write

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
    outside = count - len(weights)
    to_ours = is_published_soft(weights)
    if not to_ours and not is_our_soft(weights):
        raise CheckpointError(
            f"{str(source)!r} holds neither the authors' names of SOFT weights (pos_embed1, ...) nor ours "
            f'(stages.0.position.table, ...); its first name is {next(iter(weights))!r}'
        )
    directions = (convert_published_soft, convert_to_published_soft)
    there, back = directions if to_ours else reversed(directions)
    result = there(weights)
    if not _same(back(result), weights):
        raise CheckpointError(f'the names in {str(source)!r} do not translate back: is it a mixture of two models?')
    ours = select_part(result if to_ours else weights, part)
    architecture = verify(ours, str(source))
    result = ours if to_ours else there(ours)
    write(to_bytes(result, target.suffix), target)
    kind = 'a backbone' if architecture.num_classes is None else 'a classifier'
    rows = [
        ('source', f'{source}, of which {outside} tensors outside of the backbone are left out' if outside else source),
        ('direction', "the authors' names -> ours" if to_ours else "our names -> the authors'"),
        ('model', f"{kind}; attn, 'soft' or 'soft_pp', does not show in weights"),
        *architecture.rows(),
        ('tensors', f'{len(result)}, {sum(value.numel() for value in result.values()) / 1e6:.2f} M numbers'),
        ('written', f'{target} ({target.stat().st_size / 2**20:.1f} MiB)'),
    ]
    return '\n'.join(f'{label:<11}{text}' for label, text in rows)


def select_part(weights: Mapping[str, Tensor], part: str | None) -> dict[str, Tensor]:
    """Weights of a classifier or backbone, with our names, cut to ``part``."""
    if part == 'backbone':
        return {name: value for name, value in weights.items() if not CLASSIFIER_PARTS.match(name)}
    if part == 'classifier':
        lacking = [name for name in ('cls_token', 'cls_position', 'head.weight', 'head.bias') if name not in weights]
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
