"""How fast classifiers learn the same pictures by one recipe, epoch by epoch: ours beside their peers.

Every model starts from the seed, sees the same crops in the same order and takes the same number of steps. A run is
kept after each epoch: the same command resumes it, with equal weights. Time is the processor's, of one thread, so that
other work on the machine does not count.
"""

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.data import create_transform
from timm.optim import create_optimizer_v2
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision.datasets import ImageFolder

from mmsoft.layers import SoftAttention
from mmsoft.visualization.figures import save_figure
from mmsoft.weights.writing import whole_file

from .ablation import layers_of, without_attention
from .peers import MODELS
from .tables import spread

TEST_BATCH = 250
RULES = ('bounded', 'bounded, not scaled', 'growing')
LOOKED_AT = 50  # pictures, evenly chosen, whose loss the layers' gradients are of


@dataclass(frozen=True)
class Recipe:
    """AdamW with a cosine to a hundredth of the lr, light augmentation: what all models of a comparison share."""

    size: int = 64
    epochs: int = 20
    batch: int = 128
    lr: float = 1e-3
    weight_decay: float = 0.05
    warmup: float = 0.1  # share of all steps
    smoothing: float = 0.1
    clip: float = 5.0


Loss = Callable[[nn.Module, Tensor, Tensor, Recipe], Tensor]  # of images and labels


class Pictures:
    """The class folders ``train`` and ``val`` below a root, as batches of one recipe."""

    def __init__(self, root: str | Path, recipe: Recipe) -> None:
        missing = [name for name in ('train', 'val') if not Path(root, name).is_dir()]
        if missing:
            raise FileNotFoundError(
                f'{str(root)!r} has no folder {missing[0]!r}: pictures lie in train/<class>/ and val/<class>/'
            )
        augment = dict(auto_augment='rand-m5-mstd0.5', scale=(0.35, 1.0), re_prob=0.1)
        self.root, self.recipe = Path(root), recipe
        self.train = ImageFolder(str(self.root / 'train'), create_transform(recipe.size, is_training=True, **augment))
        if self.val(recipe.size).classes != self.train.classes:
            raise ValueError(f'{str(root)!r}: train and val must have the same class folders')
        if len(self.train) < recipe.batch:
            raise ValueError(f'--batch is at most the number of pictures, {len(self.train)}; got {recipe.batch}')

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return len(self.train) // self.recipe.batch

    def val(self, size: int) -> ImageFolder:
        return ImageFolder(str(self.root / 'val'), create_transform(size, crop_pct=1.0))

    def epoch(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled and augmented by the seed."""
        seed_everything(seed)
        return iter(DataLoader(self.train, self.recipe.batch, shuffle=True, drop_last=True))


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # timm's augmentation draws from it
    torch.manual_seed(seed)


@torch.inference_mode()
def accuracy(model: nn.Module, pictures: Dataset) -> float:
    """Top-1 in per cent."""
    model.eval()
    right = total = 0
    for images, labels in DataLoader(pictures, TEST_BATCH):
        right += int((model(images).argmax(1) == labels).sum())
        total += len(labels)
    return 100 * right / total


def lr_at(step: int, steps: int, recipe: Recipe) -> float:
    warm = max(1, round(recipe.warmup * steps))
    if step < warm:
        return recipe.lr * (step + 1) / warm
    cosine = (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2
    return recipe.lr * (0.01 + 0.99 * cosine)


def of_labels(model: nn.Module, images: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    return F.cross_entropy(model(images), labels, label_smoothing=recipe.smoothing)


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pictures: Pictures,
    epoch: int,
    seed: int,
    loss_of: Loss = of_labels,
) -> float:
    """The mean loss."""
    recipe, losses = pictures.recipe, []
    model.train()
    for step, (images, labels) in enumerate(pictures.epoch(1000 * seed + epoch), start=epoch * pictures.steps):
        for group in optimizer.param_groups:
            group['lr'] = lr_at(step, recipe.epochs * pictures.steps, recipe)
        loss = loss_of(model, images, labels, recipe)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        losses.append(loss.item())
    if not np.isfinite(losses).all():
        raise FloatingPointError(f'the loss of epoch {epoch + 1} is not finite: choose a smaller --lr')
    return sum(losses) / len(losses)


def learn(
    name: str,
    pictures: Pictures,
    seed: int,
    folder: Path,
    say: Callable[[str], None],
    build: Callable[[], nn.Module] | None = None,
    loss_of: Loss = of_labels,
    look: Callable[[nn.Module], list[dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    """Train what is not trained yet below ``folder``; the curve, and the path of the weights.

    ``build`` makes the model; without it, it is the peer of that name. ``layers`` are what ``look`` tells of the model
    at the start and after each epoch.
    """
    recipe, state_file = pictures.recipe, folder / 'state.pth'
    of = json.dumps(dict(model=name, seed=seed, data=str(pictures.root.resolve()), **asdict(recipe)))
    seed_everything(seed)
    model = build() if build else MODELS[name](len(pictures.train.classes), recipe.size)
    optimizer = create_optimizer_v2(model, opt='adamw', lr=recipe.lr, weight_decay=recipe.weight_decay)
    curve: list[dict[str, float]] = []
    layers: list[list[dict[str, Any]]] = []
    if state_file.is_file():
        state = torch.load(state_file, weights_only=True)
        if state['of'] != of:
            raise ValueError(f'{str(folder)!r} holds a run of another recipe: remove it or name another --work-dir')
        model.load_state_dict(state['model'])
        optimizer.load_state_dict(state['optimizer'])
        curve, layers = state['curve'], state.get('layers', [])
    elif look:
        layers.append(look(model))
    folder.mkdir(parents=True, exist_ok=True)
    for epoch in range(len(curve), recipe.epochs):
        start = time.process_time()
        loss = train_epoch(model, optimizer, pictures, epoch, seed, loss_of)
        seconds = time.process_time() - start
        curve.append(dict(epoch=epoch + 1, loss=loss, seconds=seconds, top1=accuracy(model, pictures.val(recipe.size))))
        if look:
            layers.append(look(model))
        with whole_file(state_file) as unfinished:
            kept = dict(of=of, model=model.state_dict(), optimizer=optimizer.state_dict(), curve=curve, layers=layers)
            torch.save(kept, unfinished)
        top1 = curve[-1]['top1']
        say(f'{name}, seed {seed}, epoch {epoch + 1} of {recipe.epochs}: loss {loss:.3f}, top-1 {top1:.1f} %')
    parameters = sum(p.numel() for p in model.parameters())
    return dict(curve=curve, parameters=parameters, layers=layers, weights=str(state_file))


def at_work(model: nn.Module, pictures: Pictures) -> list[dict[str, Any]]:
    """Numbers of each attention layer as the model is."""
    val = pictures.val(pictures.recipe.size)
    chosen = [val[index] for index in np.linspace(0, len(val) - 1, min(LOOKED_AT, len(val))).astype(int)]
    images, labels = torch.stack([image for image, _ in chosen]), torch.tensor([label for _, label in chosen])
    return layers_of(model, images, lambda logits: F.cross_entropy(logits, labels))


def without(name: str, pictures: Pictures, weights: str) -> float | None:
    """Top-1 of the trained model with attention cut out of SOFT's and InLine's layers; None where it has none."""
    model = loaded(name, pictures, weights)
    with without_attention(model) as count:
        return accuracy(model, pictures.val(pictures.recipe.size)) if count else None


def loaded(name: str, pictures: Pictures, weights: str) -> nn.Module:
    model = MODELS[name](len(pictures.train.classes), pictures.recipe.size)
    model.load_state_dict(torch.load(weights, weights_only=True)['model'])
    return model


def test_sizes(name: str, pictures: Pictures, weights: str, sizes: Sequence[int]) -> dict[int, float | None]:
    """Top-1 at other sizes; None where the model does not take one."""
    model = loaded(name, pictures, weights)
    found: dict[int, float | None] = {}
    for size in sizes:
        try:
            found[size] = accuracy(model, pictures.val(size))
        except (AssertionError, RuntimeError):  # a fixed size, such as of a position table
            found[size] = None
    return found


def test_rules(name: str, pictures: Pictures, weights: str, sizes: Sequence[int]) -> dict[str, dict[int, float]]:
    """Top-1 at other sizes with SOFT's landmarks bounded to as many as in training, and growing with the pictures."""
    model, counts = loaded(name, pictures, weights), dict[SoftAttention, int]()

    def count(layer: SoftAttention) -> Callable[..., None]:
        return lambda _, __, landmarks: counts.update({layer: landmarks.shape[2]})

    layers = [layer for layer in model.modules() if isinstance(layer, SoftAttention)]
    hooks = [layer.landmarks.register_forward_hook(count(layer)) for layer in layers]
    accuracy(model, Subset(pictures.val(pictures.recipe.size), [0]))
    for hook in hooks:
        hook.remove()
    found: dict[str, dict[int, float]] = {}
    for rule in RULES if counts else ():
        for layer, most in counts.items():
            layer.landmarks.num_landmarks = None if rule == 'growing' else most
            layer.scaled = rule != 'bounded, not scaled'
        found[rule] = {size: accuracy(model, pictures.val(size)) for size in sizes}
    return found


def study(
    root: str | Path,
    names: Sequence[str],
    seeds: Sequence[int],
    recipe: Recipe,
    work_dir: str | Path,
    sizes: Sequence[int] = (),
    say: Callable[[str], None] = print,
    kept: Path | None = None,
) -> dict[str, Any]:
    """Train each model from each seed, seed by seed, so that an interrupted comparison has all models.

    What the file ``kept`` has is not done again; what is done is added to it, run by run.
    """
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise ValueError(f'--models knows {", ".join(MODELS)}; got {unknown[0]!r}')
    torch.set_num_threads(1)
    pictures = Pictures(root, recipe)
    of = dict(recipe=asdict(recipe), data=pictures.root.name, classes=len(pictures.train.classes))
    runs: dict[str, list[dict[str, Any]]] = {}
    for seed, name in product(seeds, names):
        runs |= _kept_runs(kept, of)  # again, as another process may have added to it
        if any(run['seed'] == seed for run in runs.get(name, [])):
            continue
        look = partial(at_work, pictures=pictures) if seed == seeds[0] else None
        run = learn(name, pictures, seed, Path(work_dir, name, f'seed_{seed}'), say, look=look)
        weights = run.pop('weights')
        run |= dict(seed=seed, cut=without(name, pictures, weights), sizes=test_sizes(name, pictures, weights, sizes))
        run['rules'] = test_rules(name, pictures, weights, sizes)
        runs |= _kept_runs(kept, of)
        runs.setdefault(name, []).append(run)
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(kept) as unfinished:
                unfinished.write_text(json.dumps(of | dict(runs=runs)).replace('{"curve"', '\n{"curve"') + '\n')
    return of | dict(runs=runs)


def _kept_runs(kept: Path | None, of: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """By model, of the file."""
    if not kept or not kept.is_file():
        return {}
    found = json.loads(kept.read_text())
    runs = found.pop('runs')
    if found != of:
        raise ValueError(f'{str(kept)!r} holds runs of another recipe or of other pictures: name another --out')
    return runs


def study_table(found: dict[str, Any], goal: float) -> str:
    """Markdown: a row a model, best first."""
    sizes = [str(size) for size in next(iter(found['runs'].values()))[0]['sizes']]
    heads = [
        'model',
        'parameters',
        'top-1',
        f'epochs to {goal:g} %',
        f'minutes to {goal:g} %',
        'seconds an epoch',
        'top-1 without attention',
    ]
    heads += [f'top-1 at {size}' for size in sizes]
    rows = []
    for name, runs in found['runs'].items():
        last = [run['curve'][-1]['top1'] for run in runs]
        reached = [_reaches(run['curve'], goal) for run in runs]
        cells = [name, f'{runs[0]["parameters"] / 1e6:.1f} M', spread(last, unit=' %')]
        cells += _goal_cells(reached)
        cells.append(spread([row['seconds'] for run in runs for row in run['curve']], 0))
        cuts = [run['cut'] for run in runs if run['cut'] is not None]
        cells.append(spread(cuts, unit=' %') if cuts else '')
        for size in sizes:
            values = [{str(key): value for key, value in run['sizes'].items()}[size] for run in runs]
            cells.append(spread(values, unit=' %') if None not in values else 'takes one size')
        rows.append((-sum(last) / len(last), f'| {" | ".join(cells)} |'))
    return '\n'.join([f'| {" | ".join(heads)} |', '|---' * len(heads) + '|', *(row for _, row in sorted(rows))])


def layers_table(found: dict[str, Any]) -> str:
    """Markdown: of each model's first seed, over layers with a local term, at the start and after every epoch."""
    lines = [
        '| model | after | attention / local | P below 0.01 | condition of A | gradient to q |',
        '|---|---|---|---|---|---|',
    ]
    for name, runs in found['runs'].items():
        for epoch, rows in enumerate(runs[0].get('layers') or []):
            chosen = [row for row in rows if row.get('local') and row['attention']]
            if not chosen:
                continue
            cells = [_typical([row['attention'] / row['local'] for row in chosen])]
            landmarks = 'near_zero' in chosen[0]
            cells.append(f'{100 * np.mean([row["near_zero"] for row in chosen]):.0f} %' if landmarks else '')
            cells.append(_typical([row['condition'] for row in chosen]) if landmarks else '')
            cells.append(_typical([row['grad_q'] for row in chosen]))
            lines.append(f'| {name} | {f"epoch {epoch}" if epoch else "start"} | {" | ".join(cells)} |')
    return '\n'.join(lines)


def rules_table(found: dict[str, Any]) -> str:
    """Markdown: top-1 at larger pictures with SOFT's landmarks bounded and growing, of the same weights."""
    names = [name for name, runs in found['runs'].items() if all(run.get('rules') for run in runs)]
    sizes = [str(size) for size in found['runs'][names[0]][0]['rules']['bounded']] if names else []
    lines = [f'| model | landmarks | {" | ".join(sizes)} |', '|---' * (2 + len(sizes)) + '|']
    for name, rule in product(names, RULES):
        scores = [{str(size): top1 for size, top1 in run['rules'][rule].items()} for run in found['runs'][name]]
        cells = [spread([score[size] for score in scores], unit=' %') for size in sizes]
        lines.append(f'| {name} | {rule} | {" | ".join(cells)} |')
    return '\n'.join(lines)


def _typical(values: Sequence[float]) -> str:
    """Their geometric mean."""
    return f'{np.exp(np.mean(np.log(np.maximum(values, 1e-12)))):.2g}'


def _reaches(curve: Sequence[dict[str, float]], goal: float) -> tuple[int, float] | None:
    """Epochs and minutes until the accuracy is first there."""
    seconds = 0.0
    for row in curve:
        seconds += row['seconds']
        if row['top1'] >= goal:
            return int(row['epoch']), seconds / 60
    return None


def _goal_cells(reached: Sequence[tuple[int, float] | None]) -> list[str]:
    there = [found for found in reached if found]
    if not there:
        return ['not reached', '']
    some = '' if len(there) == len(reached) else f' ({len(there)} of {len(reached)} seeds)'
    return [spread([epochs for epochs, _ in there]) + some, spread([minutes for _, minutes in there])]


def plot(found: dict[str, Any], out: Path) -> list[Path]:
    """Top-1 against epochs and against the processor's time: means, and bands of one deviation."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({'font.size': 9}):
        figure = Figure(figsize=(11, 4.4), layout='constrained')
        left, right = figure.subplots(1, 2, sharey=True)
        for number, (name, runs) in enumerate(found['runs'].items()):
            curves = np.array([[(row['top1'], row['seconds']) for row in run['curve']] for run in runs])
            mean, deviation = curves[..., 0].mean(0), curves[..., 0].std(0)
            minutes = curves[..., 1].mean(0).cumsum() / 60
            for axes, x in ((left, np.arange(1, len(mean) + 1)), (right, minutes)):
                axes.plot(x, mean, color=f'C{number}', label=name if axes is left else None)
                axes.fill_between(x, mean - deviation, mean + deviation, color=f'C{number}', alpha=0.15, linewidth=0)
        left.set(xlabel='epoch', ylabel='top-1, %')
        right.set(xlabel='minutes of one core')
        for axes in (left, right):
            axes.grid(alpha=0.3)
        figure.legend(loc='outside lower center', ncols=5)
        return save_figure(figure, out.with_suffix(''), dpi=120)
