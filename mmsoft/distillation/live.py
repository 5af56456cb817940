"""``mmsoft.linearize(model)``: a live model of timm, torchvision, mmdet or mmseg, or of ours, made linear."""

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .copying import copy_weights, linear_options
from .matching import freeze_for, step
from .reading import Reading, TeacherError
from .sources import read

LR = dict(outputs=1e-3, maps=5e-4)


def linearize(
    model: nn.Module,
    images: Tensor | Iterable[Tensor | Sequence[Any]] | None = None,
    *,
    inline: Sequence[int] | None = None,
    attention: str = 'inline',
    steps: tuple[int, int] = (500, 1500),
    seed: int = 0,
) -> nn.Module:
    """A linear model of a trained softmax one, in evaluation mode; ``model`` stays as it is.

    Args:
        model: A classifier of timm or torchvision, a detector or segmentor of OpenMMLab, or a backbone. Of a model
            with a ``backbone`` that alone changes.
        images: Batches (B, 3, H, W), prepared as the model takes them, or tuples that begin with one, as a DataLoader
            with labels gives them. They are gone through as often as needed, so not a generator. A tensor (B, 3, H, W)
            is one batch. Without any, weights are copied and nothing learns.
        inline: How many layers of each stage become linear, by default as in the paper.
        attention: Which attention a model of ours gets; others get InLine.
        steps: Batches for the outputs of attentions, and for the maps.
        seed: Of the weights that start at random, those of InLine's predictors; the generators of torch stay as they
            are.
    """
    _check_steps(steps)
    teacher = backbone_of(model)
    reading, linear, blocks = copied(teacher, inline, attention, seed)
    linear.to(next(teacher.parameters()))  # its device and dtype
    if images is not None:
        batches = [images] if isinstance(images, Tensor) and images.dim() == 4 else images
        if not hasattr(batches, '__iter__') and not hasattr(batches, '__getitem__'):
            raise TeacherError(f'images are batches (B, 3, H, W), or one such tensor; got {images!r}')
        was_training = teacher.training
        teacher.eval()
        try:
            for stage, count in zip(('outputs', 'maps'), steps, strict=True):
                _learn(stage, count, teacher, linear, reading, blocks, batches)
        finally:
            teacher.train(was_training)
    if teacher is model:
        return linear.requires_grad_(True).eval()
    whole = copy.deepcopy(model)
    whole.backbone = linear.requires_grad_(True)
    return whole.eval()


def backbone_of(model: nn.Module) -> nn.Module:
    """What has the attentions."""
    inner = getattr(model, 'backbone', None)
    return inner if isinstance(inner, nn.Module) else model


def _check_steps(steps: Any) -> None:
    pair = isinstance(steps, Sequence) and len(steps) == 2
    if not pair or not all(type(count) is int and count >= 0 for count in steps):
        raise TeacherError(
            'steps are two numbers of batches, for the outputs of attentions and for the maps, each 0 or more; '
            f'got {steps!r}'
        )


def copied(
    teacher: nn.Module, inline: Sequence[int] | None = None, attention: str = 'inline', seed: int = 0
) -> tuple[Reading, nn.Module, list[str]]:
    """What the teacher is, its linear copy, and the blocks whose attentions are linear in it."""
    reading = read(teacher)
    with torch.random.fork_rng(devices=[]), torch.device('cpu'):
        torch.default_generator.manual_seed(seed)  # the CPU's alone: no other is restored
        linear = reading.kind(**linear_options(reading, inline, attention))
    copy = copy_weights(reading, linear, teacher)
    linear.load_state_dict(copy.weights, strict=False)
    return reading, linear.eval(), copy.attentions


def _learn(
    stage: str,
    count: int,
    teacher: nn.Module,
    linear: nn.Module,
    reading: Reading,
    blocks: list[str],
    images: Iterable[Tensor | Sequence[Any]],
) -> None:
    freeze_for(stage, linear, blocks)
    learning = [parameter for parameter in linear.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=LR[stage], weight_decay=0.0)
    done = 0
    while done < count:
        before = done
        for batch in images:
            if done == count:
                break
            for group in optimizer.param_groups:
                group['lr'] = LR[stage] * min((done + 1) / max(count / 20, 1), _cosine(done / count))
            inputs = _inputs(batch, reading).to(learning[0])
            loss = step(stage, teacher, linear, reading, blocks, inputs)['loss']
            if not torch.isfinite(loss):
                raise TeacherError(f'the loss of batch {done + 1} in the stage {stage} is not a finite number')
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(learning, 5.0)
            optimizer.step()
            done += 1
        if done == before:
            raise TeacherError('there are no images to learn from; a generator is empty once it was gone through')


def _inputs(batch: Any, reading: Reading) -> Tensor:
    """The images (B, 3, H, W) of a batch; raise unless teacher and copy have maps of equal sizes for them."""
    found = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    if not isinstance(found, Tensor) or found.dim() != 4 or not found.is_floating_point():
        what = f'{tuple(found.shape)} {found.dtype}' if isinstance(found, Tensor) else type(found).__name__
        raise TeacherError(
            'images are batches (B, 3, H, W) of floats, prepared as the model takes them, or tuples that begin with '
            f'one; got {what}'
        )
    height, width = found.shape[2:]
    if height % reading.multiple or width % reading.multiple:
        raise TeacherError(
            f'{reading.title} leaves out pixels that fill no patch, which the copy pads: give pictures whose sides are '
            f'multiples of {reading.multiple}; got {height} x {width}'
        )
    return found


def _cosine(share: float) -> float:
    return 0.01 + 0.99 * (1 + math.cos(math.pi * share)) / 2
