"""A softmax classifier of class folders, made linear without labels: what each stage keeps, beside training anew."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor, nn

import mmsoft
from mmsoft.distillation import linear_options, read
from mmsoft.engine.taught import Teacher, answer
from mmsoft.registry import MODELS as REGISTRY
from mmsoft.weights.writing import whole_file

from .learning import Pictures, Recipe, accuracy, learn, of_labels, seed_everything
from .once import once
from .peers import MODELS
from .tables import spread

TEACHER = 'swin_quarter small windows'  # all of one size, as the converter asks
SHARE = 4  # the linear model, and each that is trained anew, have a quarter of the teacher's steps
TUNED = 0.25  # of the lr, where trained weights go on with labels
ROWS = {
    'teacher': 'softmax teacher',
    'copy': 'copy',
    'outputs': 'copy, outputs',
    'maps': 'copy, outputs, maps',
    'tune': 'copy, outputs, maps, then labels',
    'scratch': 'anew, labels',
    'soft': 'anew, labels and `teacher=` (soft)',
    'soft_maps': 'anew, labels and `teacher=` (soft, maps)',
}


@REGISTRY.register_module()
class StudiedPeer:
    """A peer as configs name it."""

    def __new__(cls, name: str, classes: int, size: int) -> nn.Module:
        return MODELS[name](classes, size)


class Unlabelled:
    """Batches of the training pictures, gone through in another order each time."""

    def __init__(self, pictures: Pictures, seed: int) -> None:
        self.pictures, self.seed, self.passes = pictures, 1000 * seed + 500, 0

    def __iter__(self) -> Iterator[Tensor]:
        self.passes += 1
        return (images for images, _ in self.pictures.epoch(self.seed + self.passes))


def scores_of(pictures: Pictures, seed: int, folder: Path, say: Callable[[str], None]) -> dict[str, float]:
    """Top-1 by row of ROWS."""
    recipe = pictures.recipe
    quarter = Pictures(pictures.root, replace(recipe, epochs=recipe.epochs // SHARE))
    tuned = Pictures(pictures.root, replace(quarter.recipe, lr=TUNED * recipe.lr))
    run = learn(TEACHER, pictures, seed, folder / 'teacher', say)
    teacher = MODELS[TEACHER](len(pictures.train.classes), recipe.size)
    teacher.load_state_dict(torch.load(run['weights'], weights_only=True)['model'])
    teacher.eval()
    found = dict(teacher=run['curve'][-1]['top1'])
    steps = quarter.recipe.epochs * pictures.steps
    stages = dict(copy=(0, 0), outputs=(steps // 3, 0), maps=(steps // 3, steps - steps // 3))
    for stage, lengths in stages.items():
        make = partial(linearized, teacher, pictures, seed, lengths, folder / f'{stage}.pth')
        found[stage] = once(folder / f'{stage}.json', f'{TEACHER}, seed {seed}, {recipe}, {lengths}', make)
        say(f'{stage}, seed {seed}: top-1 {found[stage]:.1f} %')

    def linear() -> nn.Module:
        reading = read(teacher)
        return reading.kind(**linear_options(reading))

    def taught() -> nn.Module:
        model = linear()
        model.load_state_dict(torch.load(folder / 'maps.pth', weights_only=True))
        return model

    source = teacher_files(teacher, pictures, folder)
    trained: dict[str, tuple[Pictures, Callable[[], nn.Module], Any]] = dict(
        tune=(tuned, taught, of_labels),
        scratch=(quarter, linear, of_labels),
        soft=(quarter, linear, of_teacher(source)),
        soft_maps=(quarter, linear, of_teacher(source, maps=1.0)),
    )
    for row, (of, build, loss_of) in trained.items():
        found[row] = learn(row, of, seed, folder / row, say, build, loss_of)['curve'][-1]['top1']
    return found


def linearized(teacher: nn.Module, pictures: Pictures, seed: int, steps: tuple[int, int], file: Path) -> float:
    """Top-1 of the linear model, whose weights ``file`` keeps."""
    seed_everything(seed)
    model = mmsoft.linearize(teacher, Unlabelled(pictures, seed), steps=steps, seed=seed)
    with whole_file(file) as partial_file:
        torch.save(model.state_dict(), partial_file)
    return accuracy(model, pictures.val(pictures.recipe.size))


def teacher_files(teacher: nn.Module, pictures: Pictures, folder: Path) -> dict[str, str]:
    """A config and a checkpoint, as ``teacher=`` takes them."""
    config, weights = folder / 'teacher.py', folder / 'teacher.pth'
    classes, size = len(pictures.train.classes), pictures.recipe.size
    peer = dict(type='mmsoft.StudiedPeer', name=TEACHER, classes=classes, size=size)
    Config(dict(default_scope='mmengine', model=dict(type='mmsoft.ImageClassifier', backbone=peer))).dump(config)
    torch.save({f'backbone.{key}': value for key, value in teacher.state_dict().items()}, weights)
    return dict(source=str(config), checkpoint=str(weights))


def of_teacher(source: dict[str, str], **options: Any) -> Callable[[nn.Module, Tensor, Tensor, Recipe], Tensor]:
    """The loss that the option ``teacher=`` of our classifiers makes of the labels'."""
    master = Teacher(**source, kind='soft', **options)

    def loss_of(model: nn.Module, images: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
        tokens, logits = answer(model, images, bool(master.maps))
        return master.add(of_labels(lambda _: logits, images, labels, recipe), tokens, logits, images)

    return loss_of


def study(
    root: str | Path, seeds: Sequence[int], recipe: Recipe, work_dir: Path, say: Callable[[str], None] = print
) -> dict[str, list[float]]:
    """Top-1 by row, one a seed."""
    torch.set_num_threads(1)
    pictures, found = Pictures(root, recipe), {row: [] for row in ROWS}
    for seed in seeds:
        scores = scores_of(pictures, seed, work_dir / f'pictures_{seed}', say)
        for row, score in scores.items():
            found[row].append(score)
    return found


def study_table(found: dict[str, list[float]]) -> str:
    """Markdown."""
    rows = [f'| {title} | {spread(found[row], unit=" %")} |' for row, title in ROWS.items()]
    return '\n'.join(['| | top-1 |', '|---|---|', *rows])
