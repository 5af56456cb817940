"""Pretraining with more than labels: predictions of a teacher (Touvron et al., DeiT, ICML 2021), or of the average of
the model's own weights (Du et al., Sharpness-Aware Training for Free, NeurIPS 2022)."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.models.options import reject_unknown
from mmsoft.ops.checks import choose
from mmsoft.registry import MODELS

KINDS = ('soft', 'hard')
SOURCES = 'timm:<name>, torchvision:<name>, or a config with its checkpoint'


class Teacher:
    """A frozen classifier that is part of no state and of no copy of its pupil.

    It is built when it first teaches: tests and predictions need none.

    Args:
        source: ``timm:<name>``, ``torchvision:<name>``, or a config.
        checkpoint: Its weights; of timm and torchvision by default their own.
        kind: ``'soft'`` compares distributions, ``'hard'`` takes the teacher's best class for the label.
        weight: Share of the teacher in the loss.
        temperature: Of soft distributions.
        maps: Factor of the share of the teacher's last map that the pupil's gets wrong, which is added to the loss.
    """

    def __init__(
        self,
        source: str,
        checkpoint: str | None = None,
        kind: str = 'hard',
        weight: float = 0.5,
        temperature: float = 1.0,
        maps: float = 0.0,
    ) -> None:
        if not 0 < weight <= 1 or temperature <= 0 or maps < 0:
            raise ValueError(
                'teacher: weight must be above 0 and at most 1, temperature above 0, maps at least 0; '
                f'got {weight!r}, {temperature!r}, {maps!r}'
            )
        self.maps = maps
        self.kind, self.weight, self.temperature = choose('teacher: kind', kind, KINDS), weight, temperature
        if kind == 'hard' and temperature != 1:
            raise ValueError(f'teacher: temperature {temperature!r} has no effect with kind="hard"')
        self.source, self.checkpoint = source, checkpoint
        self.built: nn.Module | None = None
        if maps and source.startswith('torchvision:'):
            self._reject_maps()

    @property
    def model(self) -> nn.Module:
        """Built at the first call; random numbers of the run stay as they are."""
        if self.built is None:
            with torch.random.fork_rng(devices=[]):
                spec = dict(type='mmsoft.TeacherModel', source=self.source, checkpoint=self.checkpoint)
                model = MODELS.build(spec).eval().requires_grad_(False)
            if self.maps and not hasattr(model, 'forward_head'):
                self._reject_maps()
            self.built = model
        return self.built

    def _reject_maps(self) -> None:
        raise ValueError(f'teacher.maps takes a teacher of timm or of ours; got {self.source!r}: leave maps out')

    def __deepcopy__(self, memo: dict) -> 'Teacher':
        return self  # averages of a pupil need no teacher

    def add(self, loss: Tensor, tokens: Tensor | None, logits: Tensor, images: Tensor) -> Tensor:
        """The labels' loss, mixed with that of the teacher's answer to the same images (B, 3, H, W).

        tokens (B, N, C), those that the pupil's head pools, are compared with ``maps``.
        """
        with torch.no_grad():
            map_wanted, wanted = answer(self.model.to(images), images, bool(self.maps))
            wanted = wanted.float()
        if wanted.shape != logits.shape:
            raise ValueError(
                f'the teacher {self.source!r} gives {tuple(wanted.shape)} logits, the pupil {tuple(logits.shape)}: '
                'give a teacher of the same classes'
            )
        loss = (1 - self.weight) * loss + self.weight * self._compare(logits, wanted)
        if not self.maps:
            return loss
        assert tokens is not None and map_wanted is not None  # noqa: PT018
        return loss + self.maps * self._map_error(tokens, map_wanted)

    def _map_error(self, tokens: Tensor, wanted: Tensor) -> Tensor:
        if tokens.shape != wanted.shape:
            raise ValueError(
                f"teacher.maps compares tokens (B, N, C): the teacher's are {tuple(wanted.shape)}, the pupil's "
                f'{tuple(tokens.shape)}; give a teacher of the same width and stride, or leave maps out'
            )
        return F.mse_loss(tokens.float(), wanted.float()) / wanted.float().square().mean()

    def _compare(self, logits: Tensor, wanted: Tensor) -> Tensor:
        if self.kind == 'hard':
            return F.cross_entropy(logits, wanted.argmax(1))
        own, theirs = ((x / self.temperature).log_softmax(1) for x in (logits, wanted))
        return self.temperature**2 * F.kl_div(own, theirs, reduction='batchmean', log_target=True)


def answer(model: nn.Module, images: Tensor, with_tokens: bool) -> tuple[Tensor | None, Tensor]:
    """Of a classifier, the tokens (B, N, C) that its head pools, if they are asked for, and logits (B, classes)."""
    if not with_tokens:
        return None, model(images)
    found = model.forward_features(images)
    return tokens_of(found), model.forward_head(found)


def tokens_of(x: Tensor) -> Tensor:
    """(B, H, W, C), as timm's Swin has it, or (B, N, C) -> (B, N, C)."""
    return x.flatten(1, 2) if x.dim() == 4 else x


def teacher_of(options: str | Mapping[str, Any] | None) -> Teacher | None:
    """Of the option ``teacher`` of a classifier: options of :class:`Teacher`, its source alone, or nothing."""
    if not options:
        return None
    if isinstance(options, str):
        options = dict(source=options)
    if not isinstance(options, Mapping) or not isinstance(options.get('source', ''), str):
        raise ValueError(f'model.teacher is a source ({SOURCES}) or a dict with source=...; got {options!r}')
    reject_unknown(Teacher, options)
    if not options.get('source'):
        raise ValueError(f'model.teacher has no source: set model.teacher.source={SOURCES}')
    return Teacher(**options)


def prepare_teacher(model: nn.Module) -> None:
    """Build the one of a classifier that begins to learn."""
    teacher = getattr(model, 'teacher', None)
    if isinstance(teacher, Teacher):
        _ = teacher.model


class Mesa:
    """Adds the cross-entropy against what the average of the weights predicts, in a flat place the model's own.

    The hook AverageWeights gives ``average`` and says when it is ``active``. As a teacher, it is part of no state.

    Args:
        weight: Of this loss, beside 1 for the labels'.
        begin: Share of the training's epochs after which it is added.
    """

    def __init__(self, weight: float = 1.0, begin: float = 0.25) -> None:
        if weight <= 0 or not 0 <= begin < 1:
            raise ValueError(
                f'mesa: weight must be above 0, begin at least 0 and below 1; got {weight!r}, {begin!r}; '
                'model.mesa=None does without it'
            )
        self.weight, self.begin, self.active = weight, begin, False
        self.average: nn.Module | None = None

    def __deepcopy__(self, memo: dict) -> 'Mesa':
        return self  # the average needs none of its own

    def add(self, loss: Tensor, logits: Tensor, images: Tensor) -> Tensor:
        """The labels' loss and, once it is active, ``weight`` times this one, for images (B, 3, H, W)."""
        if self.average is None:
            raise ValueError(
                'mesa compares with the average of the weights, which nobody keeps: '
                "add dict(type='mmsoft.AverageWeights') to custom_hooks, or set model.mesa=None"
            )
        if not self.active:
            return loss
        with torch.no_grad():
            wanted = self.average(images).float().softmax(1)
        return loss + self.weight * F.cross_entropy(logits, wanted)
