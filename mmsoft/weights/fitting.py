"""Fitting weights to a model: resize, compare, load, and report all of it in one table."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from mmsoft.layers import PositionTable, resize_table

from .files import IGNORED
from .messages import CheckpointError, announce

# Fewer matches than this, of the model's tensors, and the weights are of something else.
LEAST_MATCHED = 0.5


@dataclass
class LoadReport:
    """What became of the weights: names by outcome."""

    source: str
    matched: list[str] = field(default_factory=list)
    resized: list[str] = field(default_factory=list)
    left_aside: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)

    _MEANING: ClassVar = {
        'matched': 'loaded as they are',
        'resized': 'loaded after resizing to this image size',
        'left_aside': 'not needed by this model',
        'fresh': 'kept at their random start: of other classes, asked for, or a pyramid, which no classifier has',
        'missing': 'in the model, not in the weights',
        'unexpected': 'in the weights, not in the model',
        'misshapen': 'of another shape than in the model',
    }

    @property
    def complete(self) -> bool:
        """Whether every tensor of the model was loaded and every weight has a place."""
        return not (self.missing or self.unexpected or self.misshapen)

    def __str__(self) -> str:
        lines = [f'weights from {self.source}', f'{"outcome":<11}{"tensors":>8}  meaning']
        for outcome, meaning in self._MEANING.items():
            names = getattr(self, outcome)
            lines.append(f'{outcome:<11}{len(names):>8}  {meaning}')
            if outcome != 'matched' and names:
                shown = ', '.join(names[:6]) + (f' and {len(names) - 6} more' if len(names) > 6 else '')
                lines.append(f'{"":<21}{shown}')
        return '\n'.join(lines)


def load_weights(
    model: nn.Module, weights: Mapping[str, Tensor], *, source: str, strict: bool = True, fresh: Iterable[str] = ()
) -> LoadReport:
    """Load weights with our names into ``model`` and say in one table what fitted.

    ``strict`` refuses anything missing, unexpected or misshapen; without it these stay as they are,
    but weights that match less than half of the model are an error all the same. Names in
    ``fresh`` are not loaded. A refusal leaves the model unchanged.
    """
    fitted, report = fit_weights(model, weights, source=source, strict=strict, fresh=fresh)
    model.load_state_dict(fitted, strict=False)
    announce(str(report), logging.INFO if report.complete else logging.WARNING)
    return report


def fit_weights(
    model: nn.Module, weights: Mapping[str, Tensor], *, source: str, strict: bool = True, fresh: Iterable[str] = ()
) -> tuple[dict[str, Tensor], LoadReport]:
    """What load_weights would load, and its report; the model may be on the meta device.

    A model may say of names what is as it should be: by ``leaves_aside(names)``, which of these weights it, or its
    backbone, has no place for, and by ``starts_fresh(names)``, which of its own they need not have.
    """
    own = {name: value for name, value in model.state_dict().items() if not name.endswith(IGNORED)}
    report, fitted = LoadReport(source, fresh=[*fresh, *_told(model, 'starts_fresh', weights)]), {}
    not_needed = {
        f'{prefix}{name}'
        for prefix, part in (('', model), ('backbone.', getattr(model, 'backbone', None)))
        for name in _told(part, 'leaves_aside', [n.removeprefix(prefix) for n in weights if n.startswith(prefix)])
    }
    tables = {f'{name}.table' for name, module in model.named_modules() if isinstance(module, PositionTable)}
    for name, value in weights.items():
        if name.endswith(IGNORED) or name in report.fresh:
            continue
        if name not in own:
            (report.left_aside if name in not_needed else report.unexpected).append(name)
            continue
        outcome = report.matched
        if name in tables and value.dim() == 4 and value.shape != own[name].shape:
            value, outcome = resize_table(value.float(), own[name].shape[1:3]), report.resized
        if value.shape != own[name].shape:
            report.misshapen.append(f'{name} {tuple(value.shape)} for {tuple(own[name].shape)}')
            continue
        fitted[name] = value
        outcome.append(name)
    twins = _twins(weights, fitted, report.unexpected)
    report.left_aside += twins
    report.unexpected = [name for name in report.unexpected if name not in twins]
    accounted = {*fitted, *report.fresh, *(entry.split()[0] for entry in report.misshapen)}
    report.missing = [name for name in own if name not in accounted]
    if len(fitted) < LEAST_MATCHED * len(own):
        raise CheckpointError(
            f'these weights match {len(fitted)} of the {len(own)} tensors of {type(model).__name__}: '
            f'they belong to another model or use other names\n{report}'
        )
    if strict and not report.complete:
        raise CheckpointError(
            f'these weights do not fit {type(model).__name__}: choose the options that they were trained with; '
            f'in Python, strict=False keeps the rest of the model as it is\n{report}'
        )
    return fitted, report


def _twins(weights: Mapping[str, Tensor], fitted: Mapping[str, Tensor], names: Iterable[str]) -> list[str]:
    """Those of ``names`` that belong to a part which the model has, with equal weights, in another of its parts.

    DDQ gives a part of its head to its decoder when it trains, so that a checkpoint has it twice.
    """
    parts: dict[str, list[str]] = {}
    for name in names:
        parts.setdefault('.'.join(name.split('.')[:2]), []).append(name)
    owners = {name.split('.')[0] for name in fitted}

    def is_in(owner: str, part: list[str]) -> bool:
        places = {name: f'{owner}.{name.partition(".")[2]}' for name in part}
        return all(place in fitted and weights[name].equal(weights[place]) for name, place in places.items())

    with_matrices = [part for part in parts.values() if any(weights[name].dim() > 1 for name in part)]
    return [name for part in with_matrices if any(is_in(owner, part) for owner in owners) for name in part]


def take_prefix(weights: Mapping[str, Tensor], prefix: str, source: str) -> dict[str, Tensor]:
    """The part of a larger model whose names start with ``prefix``, without it."""
    part = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    if not part:
        raise CheckpointError(f'no weight in {source} starts with {prefix!r}; the first is {next(iter(weights))!r}')
    return part


def _told(model: nn.Module | None, what: str, weights: Iterable[str]) -> set[str]:
    ask: Any = getattr(model, what, None)
    return set(ask(weights)) if ask else set()
