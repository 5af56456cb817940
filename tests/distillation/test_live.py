"""``mmsoft.linearize`` as a library: what it takes, and what it leaves alone."""

import inspect

import pytest
import timm
import torch
import torchvision
from mmdet.models.backbones import PyramidVisionTransformer

import mmsoft
from mmsoft.distillation import TeacherError


def vit(**options):
    torch.manual_seed(3)
    return timm.create_model('deit_tiny_patch16_224', depth=1, img_size=32, num_classes=3, **options).eval()


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


def test_images_are_a_tensor_batches_or_what_a_data_loader_gives():
    teacher, images = vit(), torch.randn(4, 3, 32, 32)
    forms = [images, [images], [(images, torch.zeros(4))], torch.utils.data.DataLoader([(i, 0) for i in images], 4)]
    first, *others = [mmsoft.linearize(teacher, form, steps=(1, 1)) for form in forms]
    assert all(same(first, other) for other in others)
    assert not same(first, mmsoft.linearize(teacher))


def test_what_is_wrong_is_told():
    teacher, images = vit().train(), torch.randn(1, 3, 32, 32)
    for steps in ((1,), 3, (-1, -1), (1.5, 2)):
        with pytest.raises(TeacherError, match=r'steps are two numbers of batches, .* each 0 or more; got'):
            mmsoft.linearize(teacher, images, steps=steps)
    for wrong, says in ((images[0], r'got \(32, 32\)'), ([{}], 'got dict'), (images.byte(), 'torch.uint8')):
        with pytest.raises(TeacherError, match=rf'images are batches \(B, 3, H, W\) of floats, .*{says}'):
            mmsoft.linearize(teacher, wrong, steps=(1, 0))
    with pytest.raises(TeacherError, match=r'images are batches \(B, 3, H, W\), or one such tensor; got 3'):
        mmsoft.linearize(teacher, 3)
    assert teacher.training


@pytest.mark.parametrize(
    ('build', 'size', 'multiple'),
    [
        (lambda: torchvision.models.SwinTransformer([4, 4], 32, [1] * 4, [1, 2, 4, 8], [7, 7]), (100, 130), 4),
        (lambda: PyramidVisionTransformer(num_layers=[1] * 4), (64, 80), 32),
    ],
)
def test_pictures_whose_maps_would_differ_are_refused(build, size, multiple):
    says = f'multiples of {multiple}; got {size[0]} x {size[1]}'
    with pytest.raises(TeacherError, match=says):
        mmsoft.linearize(build(), torch.randn(1, 3, *size), steps=(1, 0))


def test_the_copy_has_the_dtype_of_its_teacher():
    teacher, images = vit().bfloat16(), torch.randn(2, 3, 32, 32).bfloat16()
    linear = mmsoft.linearize(teacher, images, steps=(1, 1))
    assert {value.dtype for value in linear.parameters()} == {torch.bfloat16}
    assert linear(images).dtype == torch.bfloat16


def test_new_weights_follow_the_seed_alone():
    teacher = vit()
    before = torch.get_rng_state()
    first = mmsoft.linearize(teacher)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(9)
    assert same(first, mmsoft.linearize(teacher))
    assert not same(first, mmsoft.linearize(teacher, seed=1))
    assert inspect.signature(mmsoft.linearize).parameters['seed'].default == 0


def test_models_without_a_head_give_what_they_gave():
    swin = timm.create_model('swin_tiny_patch4_window7_224', num_classes=0)
    bare = torchvision.models.swin_t()
    bare.head = torch.nn.Identity()
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        for teacher in (swin.eval(), bare.eval()):
            assert mmsoft.linearize(teacher)(images).shape == teacher(images).shape == (1, 768)
