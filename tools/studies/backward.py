"""Which gradient of Newton's inverse trains better: the closed form or the unrolled iteration?

Small classifiers are trained from the same start on the same batches, differing in nothing else.
"""

import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmsoft.datasets import SHAPES, draw_shapes
from mmsoft.models import SOFTClassifier
from mmsoft.ops import newton_inverse
from mmsoft.ops.attention import landmark_matrices
from mmsoft.ops.newton import BACKWARDS

from .tables import spread

ARCH = dict(dims=(32, 64, 96, 128), heads=(1, 2, 3, 4), depths=(1, 1, 2, 1))
SIZE = 224  # 49 landmarks in every stage
LEARNING_RATE = 2e-3


def train_pair(attn: str, seed: int, steps: int, batch: int, test_images: int) -> list[dict[str, Any]]:
    """Train one model a gradient, step by step in turn, so that timing noise meets both alike."""
    models, optimizers, records = {}, {}, {}
    for backward in BACKWARDS:
        torch.manual_seed(seed)
        models[backward] = SOFTClassifier(
            ARCH, attn=attn, newton_backward=backward, num_classes=len(SHAPES), drop_path_rate=0.0
        )
        optimizers[backward] = torch.optim.AdamW(models[backward].parameters(), lr=LEARNING_RATE, weight_decay=0.05)
        records[backward] = dict(losses=[], seconds=[])
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        images, labels = draw_shapes(batch, SIZE, generator)
        factor = min((step + 1) / 20, 1 - step / steps)  # warm-up, then linear to 0
        for backward, model in models.items():
            for group in optimizers[backward].param_groups:
                group['lr'] = LEARNING_RATE * factor
            start = time.perf_counter()
            loss = F.cross_entropy(model(images), labels)
            optimizers[backward].zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizers[backward].step()
            records[backward]['seconds'].append(time.perf_counter() - start)
            records[backward]['losses'].append(loss.item())
    images, labels = draw_shapes(test_images, SIZE, torch.Generator().manual_seed(10_000 + seed))
    return [
        dict(
            attn=attn,
            backward=backward,
            seed=seed,
            steps=steps,
            loss=statistics.mean(records[backward]['losses'][-steps // 5 :]),
            accuracy=_accuracy(model.eval(), images, labels),
            seconds_a_step=statistics.median(records[backward]['seconds']),
            residual=newton_residual(model, images[:batch]),
        )
        for backward, model in models.items()
    ]


@torch.no_grad()
def newton_residual(model: SOFTClassifier, images: Tensor) -> dict[str, float]:
    """|A X A - A| / |A| in the Frobenius norm over all of a model's matrices: median and largest."""
    ratios = []

    def measure(attention: torch.nn.Module, landmarks: Tensor) -> None:
        _, a, alpha = landmark_matrices(landmarks, attention.normalize)
        inverse = newton_inverse(a, alpha, attention.newton_iters)
        ratios.append((torch.linalg.matrix_norm(a @ inverse @ a - a) / torch.linalg.matrix_norm(a)).flatten())

    hooks = [
        attention.landmarks.register_forward_hook(lambda _, __, output, attention=attention: measure(attention, output))
        for stage in model.stages[:3]
        for attention in (block.attn for block in stage.blocks)
    ]
    model(images)
    for hook in hooks:
        hook.remove()
    ratios = torch.cat(ratios)
    return dict(median=ratios.median().item(), largest=ratios.max().item())


def summarise(records: list[dict[str, Any]]) -> str:
    """A Markdown table: mean and standard deviation over seeds."""
    lines = [
        '| attention | gradient | seeds | final loss | accuracy | time a step | Newton residual: median, largest |',
        '|---|---|---|---|---|---|---|',
    ]
    for attn in dict.fromkeys(record['attn'] for record in records):
        by_backward = {b: [r for r in records if (r['attn'], r['backward']) == (attn, b)] for b in BACKWARDS}
        seconds = {b: statistics.mean(run['seconds_a_step'] for run in runs) for b, runs in by_backward.items()}
        for backward, runs in by_backward.items():
            loss, accuracy = ([run[key] for run in runs] for key in ('loss', 'accuracy'))
            ratio = seconds[backward] / min(seconds.values())
            median = statistics.median(run['residual']['median'] for run in runs)
            largest = max(run['residual']['largest'] for run in runs)
            lines.append(
                f'| {attn} | {backward} | {len(runs)} | {spread(loss, 3)} '
                f'| {spread([100 * a for a in accuracy])} % | {ratio:.2f} x | {median:.1e}, {largest:.1e} |'
            )
    return '\n'.join(lines)


@torch.no_grad()
def _accuracy(model: SOFTClassifier, images: Tensor, labels: Tensor) -> float:
    predicted = torch.cat([model(part).argmax(1) for part in images.split(32)])
    return (predicted == labels).float().mean().item()
