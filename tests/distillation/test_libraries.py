"""Names and sizes of timm's models."""

import pytest
import timm
import torch
from helpers import relative_error
from torch import nn

from mmsoft.distillation.libraries import for_any_size, names_near

DEIT = 'deit_tiny_patch16_224'


@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('swin_tiny_patch4_window7_224', dict(embed_dim=32, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8))),
        (DEIT, dict(depth=2)),
    ],
)
def test_models_of_one_size_take_others_and_are_the_same_at_their_own(name, options):
    model = timm.create_model(name, **options).eval()
    any_size = for_any_size(model)
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert relative_error(any_size(images), model(images)) < 1e-6
        assert any_size(torch.randn(1, 3, 130, 333)).shape == (1, 1000)
        with pytest.raises(AssertionError):
            model(torch.randn(1, 3, 130, 333))
    assert for_any_size(linear := nn.Linear(1, 1)) is linear


def test_the_name_that_was_meant_comes_first():
    names = timm.list_models()
    assert names_near('swin_tinny_patch4_window7_224', names).startswith('swin_tiny_patch4_window7_224, ')
    assert names_near('swin_tinny', names).startswith('swin_tiny_patch4_window7_224, ')
    assert names_near('deit_tiny', names).startswith('deit_tiny_')
    assert all(name.startswith('swin') for name in names_near('swin', names).split(', '))
    assert f'none like it among {len(names)}' in names_near('nope', names)
