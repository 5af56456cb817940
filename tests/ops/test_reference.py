"""The network against the authors' outputs and against an independent float64 reference."""

import itertools

import pytest
import torch
from helpers import relative_error
from reference import best_grid, soft_reference

from mmsoft.checkpoints import from_published
from mmsoft.models import SOFT
from mmsoft.ops import bounded_grid


def test_authors_outputs_are_met(golden):
    classifier = from_published(golden.weights, attn=golden.attn)
    backbone = SOFT(
        classifier.arch, attn=golden.attn, init_cfg=dict(type='Pretrained', checkpoint=dict(model=golden.weights))
    )
    backbone.init_weights()
    backbone.eval()
    assert len(golden.inputs) == 2
    for size, image in golden.inputs.items():
        with torch.no_grad():
            assert relative_error(classifier(image), golden.outputs[f'logits/{size}']) < 1e-5
            for i, stage in enumerate(backbone(image)[:3], start=1):
                assert relative_error(stage[:, :, ::3, ::3], golden.outputs[f'stage{i}/{size}']) < 1e-5


@pytest.mark.parametrize(
    ('size', 'num_landmarks'),
    [
        ((224, 224), 49),  # as published
        ((64, 64), 49),  # fewer landmarks than 49
        ((33, 47), 49),  # smaller than a landmark window in stages 1 to 3
        ((97, 201), None),  # odd, m = 3 x 6
        ((320, 288), None),  # m = 90 > 49, as published
        ((320, 288), 49),  # the bounded grid
        ((255, 513), 20),  # odd, another bound
    ],
)
def test_own_reference_is_met(golden, size, num_landmarks):
    model = from_published(golden.weights, attn=golden.attn, num_landmarks=num_landmarks)
    images = torch.randn(2, 3, *size)
    images[1] *= 5
    logits, maps = soft_reference(golden.weights, images, golden.attn, num_landmarks)
    with torch.no_grad():
        assert relative_error(model(images), logits) < 2e-5
        for found, expected in zip(SOFT.forward(model, images)[:3], maps, strict=True):
            assert relative_error(found, expected) < 2e-5


def test_bounded_grid_is_the_best_of_all_grids():
    assert bounded_grid(200, 336, 49) == (5, 9)
    sizes = [(56, 56), (200, 336), (57, 31), (8, 800), (800, 8), (101, 99), (25, 42), (1, 9), (50, 84), (64, 64)]
    for (height, width), limit in itertools.product(sizes, (1, 2, 7, 36, 49, 60)):
        assert bounded_grid(height, width, limit) == best_grid(height, width, limit), (height, width, limit)
