"""Pretraining with a teacher: its predictions beside the labels, soft or hard (Touvron et al., DeiT, ICML 2021)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops.checks import choose
from mmsoft.registry import MODELS

KINDS = ('soft', 'hard')


class Teacher:
    """A frozen classifier that is part of no state and of no copy of its pupil.

    Args:
        source: ``timm:<name>``, ``torchvision:<name>``, or a config.
        checkpoint: Its weights; of timm and torchvision by default their own.
        kind: ``'soft'`` compares distributions, ``'hard'`` takes the teacher's best class for the label.
        weight: Share of the teacher in the loss.
        temperature: Of soft distributions.
    """

    def __init__(
        self,
        source: str,
        checkpoint: str | None = None,
        kind: str = 'hard',
        weight: float = 0.5,
        temperature: float = 1.0,
    ) -> None:
        if not 0 < weight <= 1 or temperature <= 0:
            raise ValueError(
                f'teacher: weight must be above 0 and at most 1, temperature above 0; got {weight!r}, {temperature!r}'
            )
        self.kind, self.weight, self.temperature = choose('teacher: kind', kind, KINDS), weight, temperature
        if kind == 'hard' and temperature != 1:
            raise ValueError(f'teacher: temperature {temperature!r} has no effect with kind="hard"')
        self.model: nn.Module = MODELS.build(dict(type='mmsoft.TeacherModel', source=source, checkpoint=checkpoint))
        self.model.eval().requires_grad_(False)
        self.source = source

    def __deepcopy__(self, memo: dict) -> 'Teacher':
        return self  # averages of a pupil need no teacher

    def add(self, loss: Tensor, logits: Tensor, images: Tensor) -> Tensor:
        """The labels' loss, mixed with that of the teacher's predictions for the same images (B, 3, H, W)."""
        with torch.no_grad():
            wanted = self.model(images).float()
        if wanted.shape != logits.shape:
            raise ValueError(
                f'the teacher {self.source!r} gives {tuple(wanted.shape)} logits, the pupil {tuple(logits.shape)}: '
                'give a teacher of the same classes'
            )
        return (1 - self.weight) * loss + self.weight * self._compare(logits, wanted)

    def _compare(self, logits: Tensor, wanted: Tensor) -> Tensor:
        if self.kind == 'hard':
            return F.cross_entropy(logits, wanted.argmax(1))
        own, theirs = ((x / self.temperature).log_softmax(1) for x in (logits, wanted))
        return self.temperature**2 * F.kl_div(own, theirs, reduction='batchmean', log_target=True)
