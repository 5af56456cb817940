"""What a linear model is taught by its softmax teacher without labels: outputs of attentions, then maps."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.engine.taught import tokens_of
from mmsoft.layers import embedded_size
from mmsoft.models.archs import STRIDES

from .reading import Reading, TeacherError

WEIGHT = 50.0  # of the error of outputs; Copy the Same, Distill the Difference (arXiv:2609.35745)


def features(model: nn.Module, images: Tensor) -> list[Tensor]:
    """What the neck receives, maps (B, C, H, W); of a classifier the tokens (B, N, C) that its head pools."""
    if isinstance(getattr(model, 'features', None), nn.Module):  # torchvision's
        found = model.norm(model.features(images))
    elif hasattr(model, 'num_classes'):
        found = model.forward_features(images)
    else:
        return list(model(images))
    return [tokens_of(found)]


class Lesson:
    """Inputs and outputs of a teacher's attentions on a batch: ``with Lesson(...) as lesson: teacher(images)``.

    In a block that normalises first, the attention's input is what ``norm1`` gives, and its output what was added
    between ``norm1`` and ``norm2``: no library need tell how it cuts windows. Of our own models the attentions
    themselves are listened to.
    """

    def __init__(self, teacher: nn.Module, reading: Reading, blocks: Iterable[str]) -> None:
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.hooks: list[Any] = []
        self.teacher, self.reading, self.blocks = teacher, reading, list(blocks)

    def __enter__(self) -> 'Lesson':
        for block in self.blocks:
            if self.reading.title.startswith('mmsoft.'):
                attention = self.teacher.get_submodule(f'{block}.attn')
                self.hooks.append(attention.register_forward_hook(self._hear(block)))
            else:
                norms = [self.reading.names[f'{block}.{norm}.weight'] for norm in ('norm1', 'norm2')]
                first, second = (self.teacher.get_submodule(name.removesuffix('.weight')) for name in norms)
                self.hooks.append(first.register_forward_hook(self._enter(block)))
                self.hooks.append(second.register_forward_pre_hook(self._leave(block)))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _hear(self, block: str) -> Any:
        def hear(module: nn.Module, arguments: tuple, output: Tensor) -> None:
            self.inputs[block], self.outputs[block] = arguments[0], output

        return hear

    def _enter(self, block: str) -> Any:
        def enter(module: nn.Module, arguments: tuple, output: Tensor) -> None:
            self.inputs[block], self.outputs[block] = tokens_of(output), tokens_of(arguments[0])

        return enter

    def _leave(self, block: str) -> Any:
        def leave(module: nn.Module, arguments: tuple) -> None:
            self.outputs[block] = tokens_of(arguments[0]) - self.outputs[block]

        return leave


def grid_at(model: nn.Module, block: str, size: tuple[int, int]) -> tuple[int, int]:
    """The grid of a block of ours for images of this size."""
    stage = block.split('.')
    strides = getattr(model, 'stage_strides', STRIDES)
    return embedded_size(size, strides[int(stage[1])] if stage[0] == 'stages' else 16)


def output_errors(model: nn.Module, lesson: Lesson, size: tuple[int, int]) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean squared error of all outputs, and the share of each output's power that is wrong, by block.

    Every attention gets its teacher's input: what one learns does not depend on the others.
    """
    losses, errors = [], {}
    for block in lesson.blocks:
        attention = model.get_submodule(f'{block}.attn')
        found = attention(lesson.inputs[block], grid_at(model, block, size)).float()
        wanted = lesson.outputs[block].float()
        losses.append(F.mse_loss(found, wanted))
        errors[block] = losses[-1].detach() / wanted.square().mean()
    return torch.stack(losses).mean(), errors


def map_errors(found: list[Tensor], wanted: list[Tensor]) -> list[Tensor]:
    """The share of each map's power that is wrong."""
    for one, other in zip(found, wanted, strict=True):
        if one.shape != other.shape:
            raise TeacherError(
                f'maps of the linear model are {tuple(one.shape)}, of the teacher {tuple(other.shape)}: give pictures '
                'whose sides are multiples of 32'
            )
    pairs = zip(found, wanted, strict=True)
    return [F.mse_loss(one.float(), other.float()) / other.float().square().mean() for one, other in pairs]


def attention_parameters(model: nn.Module, blocks: Iterable[str]) -> list[nn.Parameter]:
    return [parameter for block in blocks for parameter in model.get_submodule(f'{block}.attn').parameters()]


def freeze_for(stage: str, model: nn.Module, blocks: Iterable[str]) -> None:
    """Let learn what a stage teaches: linear attentions (outputs), or all of a model but its head (maps)."""
    model.requires_grad_(stage == 'maps')
    for parameter in attention_parameters(model, blocks):
        parameter.requires_grad_(True)
    if isinstance(getattr(model, 'head', None), nn.Module):
        model.head.requires_grad_(False)


def step(
    stage: str, teacher: nn.Module, model: nn.Module, reading: Reading, blocks: list[str], images: Tensor
) -> dict[str, Tensor]:
    """``loss``, and the mean relative error, of a batch in a stage."""
    if stage == 'outputs':
        with torch.no_grad(), Lesson(teacher, reading, blocks) as lesson:
            teacher(images)
        loss, errors = output_errors(model, lesson, images.shape[-2:])
        return dict(loss=WEIGHT * loss, error=torch.stack(list(errors.values())).mean())
    with torch.no_grad():
        wanted = features(teacher, images)
    loss = torch.stack(map_errors(features(model, images), wanted)).mean()
    return dict(loss=loss, error=loss.detach())


@torch.no_grad()
def errors_of(
    teacher: nn.Module, model: nn.Module, reading: Reading, blocks: list[str], batches: Iterable[Tensor]
) -> Mapping[str, float]:
    """Relative errors over all batches: of each attention on the teacher's input, and of each map end to end."""
    sums: dict[str, list[float]] = {}
    for images in batches:
        with Lesson(teacher, reading, blocks) as lesson:
            wanted = features(teacher, images)
        found = output_errors(model, lesson, images.shape[-2:])[1]
        found |= {f'map {i}': error for i, error in enumerate(map_errors(features(model, images), wanted))}
        for name, error in found.items():
            sums.setdefault(name, []).append(float(error))
    return {name: sum(values) / len(values) for name, values in sums.items()}
