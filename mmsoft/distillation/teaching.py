"""The stages ``outputs`` and ``maps`` as OpenMMLab trains models."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from mmengine.model import BaseDataPreprocessor, BaseModel, ImgDataPreprocessor
from torch import Tensor, nn

from mmsoft.checkpoints import read_state_dict
from mmsoft.engine.saving import parse_interval
from mmsoft.models.archs import STRIDES
from mmsoft.ops.checks import choose
from mmsoft.registry import MODELS

from .libraries import names_near
from .matching import freeze_for, step
from .reading import TeacherError, load_whole
from .sources import read

STAGES = ('outputs', 'maps')


def check_numbers(
    steps: Mapping[str, int], lr: Mapping[str, float], batch_size: int, workers: int, save_every: str | None
) -> None:
    """Raise for what no run can be made with."""
    for stage in STAGES:
        if steps[stage] < 0:
            raise ValueError(f'--steps are iterations of outputs and maps, 0 to leave one out; got {steps[stage]}')
        if not (lr[stage] > 0 and math.isfinite(lr[stage])):
            raise ValueError(f'--lr are numbers above 0, of outputs and maps; got {lr[stage]}')
    if batch_size < 1:
        raise ValueError(f'--batch-size is 1 or more pictures; got {batch_size}')
    if workers < 0:
        raise ValueError(f'--workers is 0 or more processes that read pictures; got {workers}')
    if save_every:
        parse_interval(save_every)


@MODELS.register_module()
class Distillation(BaseModel):
    """A linear model learns of its teacher, of pictures alone.

    The teacher is no part of checkpoints: they hold ``student``.

    Args:
        stage: ``'outputs'`` (of attentions) or ``'maps'``.
        teacher, student: Backbones or classifiers.
        teacher_weights, student_weights: Files of these models alone, where both start.
        blocks: Those of the student whose attentions are linear.
    """

    def __init__(
        self,
        stage: str,
        teacher: Mapping[str, Any],
        student: Mapping[str, Any],
        teacher_weights: str,
        student_weights: str,
        blocks: Sequence[str],
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor, init_cfg)
        self.stage, self.blocks = choose('stage', stage, STAGES), list(blocks)
        self.student = MODELS.build(student)
        load_whole(self.student, read_state_dict(student_weights), student_weights)
        freeze_for(stage, self.student, self.blocks)
        master = MODELS.build(teacher)
        load_whole(master, read_state_dict(teacher_weights), teacher_weights)
        master.eval()
        master.requires_grad_(False)
        self._teacher = [master]  # in a list, so that it is no part of this module
        self.reading = read(master)

    def init_weights(self) -> None:
        """Both have theirs."""

    def train(self, mode: bool = True) -> 'Distillation':
        """The student computes as its teacher does: BatchNorm, of SOFT's frame, with what it has stored."""
        super().train(mode)
        self.student.eval()
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> nn.Module:
        self._teacher[0]._apply(fn)
        return super()._apply(fn, recurse)

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'loss') -> dict[str, Tensor]:
        """Images (B, 3, H, W) or a list of them -> the loss, and the share of power that is wrong."""
        images = torch.stack(list(inputs)) if isinstance(inputs, (list, tuple)) else inputs
        return step(self.stage, self._teacher[0], self.student, self.reading, self.blocks, images)


@MODELS.register_module()
class PicturesOnly(BaseDataPreprocessor):
    """Colours and padding of another preprocessor, for pictures without annotations; sides become multiples of 32."""

    def __init__(self, inner: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        inner = inner or {}
        options = {name: inner[name] for name in ('mean', 'std', 'bgr_to_rgb', 'rgb_to_bgr') if name in inner}
        padding = inner.get('pad_value', inner.get('pad_val', 0))
        divisor = inner.get('pad_size_divisor', SIDES)
        self.inner = ImgDataPreprocessor(**options, pad_size_divisor=divisor, pad_value=padding)
        if not inner:  # a classifier's pictures are ready
            self.inner = BaseDataPreprocessor()

    def forward(self, data: dict, training: bool = False) -> dict:
        found = self.inner(dict(inputs=data['inputs'], data_samples=None), training)
        return dict(inputs=found['inputs'], data_samples=None)


SIDES = STRIDES[-1]


@MODELS.register_module(name='TeacherModel')
def teacher_model(source: str, checkpoint: str | None = None) -> nn.Module:
    """A trained classifier: ``timm:<name>``, ``torchvision:<name>``, or a config with its checkpoint."""
    from .linearizing import open_source

    model = open_source(source, checkpoint).module
    if not any(hasattr(model, part) for part in ('num_classes', 'head', 'heads', 'fc', 'classifier')):
        raise TeacherError(f'{source!r} is no classifier: a teacher for pretraining gives logits')
    return model


@MODELS.register_module(name='LibraryModel')
def library_model(library: str, name: str, **options: Any) -> nn.Module:
    """A model of timm or torchvision by its name."""
    if library == 'timm':
        import timm

        if not timm.is_model(name):
            raise TeacherError(f'timm has no model {name!r}; it has {names_near(name, timm.list_models())}')
        return timm.create_model(name, **options)
    from torchvision import models

    if name not in models.list_models(models):
        raise TeacherError(
            f'torchvision has no model {name!r}; it has {", ".join(models.list_models(include="swin*"))}'
        )
    weights = 'DEFAULT' if options.pop('pretrained', False) else None
    return models.get_model(name, weights=weights, **options)
