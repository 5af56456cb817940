"""The InLine networks against the authors' outputs and against an independent float64 reference."""

import pytest
import torch
import torch.nn.functional as F
from helpers import Golden, relative_error
from inline_reference import inline_reference

from mmsoft import models
from mmsoft.checkpoints import from_published, load_pretrained, read_architecture
from mmsoft.models.family import our_family

MODELS = {
    'pvt': (models.InLinePVT, models.InLinePVTClassifier),
    'swin': (models.InLineSwin, models.InLineSwinClassifier),
    'deit': (models.InLineDeiT, models.InLineDeiTClassifier),
    'cswin': (models.InLineCSwin, models.InLineCSwinClassifier),
}
FAMILIES = list(MODELS)


@pytest.mark.parametrize('family', FAMILIES)
def test_the_reference_meets_the_authors_outputs(family):
    golden = Golden(f'inline_{family}')
    assert len(golden.inputs) == 1
    for size, image in golden.inputs.items():
        logits, maps = inline_reference(family, golden.weights, image)
        assert relative_error(logits, golden.outputs[f'logits/{size}']) < 1e-5
        published = [name for name in golden.outputs if name.startswith('stage')]
        assert len(published) == (3 if family == 'pvt' else 0)
        for name in published:
            assert relative_error(maps[int(name[5]) - 1][:, :, ::3, ::3], golden.outputs[name]) < 1e-5


@pytest.mark.parametrize('family', FAMILIES)
def test_authors_outputs_are_met(family):
    golden = Golden(f'inline_{family}')
    classifier = from_published(dict(model=golden.weights))
    backbone_type, classifier_type = MODELS[family]
    assert type(classifier) is classifier_type
    options = read_architecture(classifier.state_dict()).options
    backbone = backbone_type(**options, init_cfg=dict(type='Pretrained', checkpoint=dict(model=golden.weights)))
    backbone.init_weights()
    backbone.eval()
    for size, image in golden.inputs.items():
        with torch.no_grad():
            assert relative_error(classifier(image), golden.outputs[f'logits/{size}']) < 1e-5
            maps = backbone(image)
        expected = inline_reference(family, golden.weights, image)[1]
        if family == 'deit':  # its own map goes into a pyramid that the authors do not have
            continue
        for i, (found, reference) in enumerate(zip(maps, as_given(family, expected), strict=True), start=1):
            assert relative_error(found, reference) < 2e-5
            if family == 'pvt' and i < 4:
                assert relative_error(found[:, :, ::3, ::3], golden.outputs[f'stage{i}/{size}']) < 1e-5


# Narrow, with InLine layers, softmax layers, and in Swin and CSwin a stage of both.
ARCHS = {
    'pvt': dict(dims=(16, 32, 48, 64), heads=(1, 2, 3, 4), depths=(1, 2, 1, 1)),
    'swin': dict(dims=(16, 32, 64, 128), heads=(1, 2, 4, 8), depths=(1, 2, 4, 2), inline=(1, 2, 1, 0)),
    'deit': dict(dims=(48,), heads=(3,), depths=(2,)),
    'cswin': dict(dims=(16, 32, 64, 128), heads=(2, 4, 8, 16), depths=(1, 1, 3, 1), inline=(1, 1, 1, 0)),
}
SIZES = [
    (96, 96),
    (32, 40),  # one pixel in the last stage; windows larger than the map
    (97, 65),  # odd
    (230, 190),  # shifted windows, some of them padded
]


@pytest.mark.parametrize('size', SIZES, ids=str)
@pytest.mark.parametrize('family', FAMILIES)
def test_own_reference_is_met(family, size):
    """With the whole of each network's weights at random, two images at a time."""
    model = randomised(MODELS[family][1](ARCHS[family], num_classes=5, img_size=96)).eval()
    weights = our_family(model.state_dict()).to_published(model.state_dict())
    images = torch.randn(2, 3, *size)
    images[1] *= 5
    logits, maps = inline_reference(family, weights, images)
    with torch.no_grad():
        assert relative_error(model(images), logits) < 2e-5
        if family == 'deit':
            return
        backbone = MODELS[family][0](ARCHS[family], img_size=96).eval()
        load_pretrained(backbone, weights)
        for found, expected in zip(backbone(images), as_given(family, maps), strict=True):
            assert relative_error(found, expected) < 2e-5


@pytest.mark.parametrize('kernel', ['relu', 'leaky_relu', 'exp'])
@pytest.mark.parametrize('family', FAMILIES)
def test_own_reference_is_met_with_other_kernels(family, kernel):
    model = randomised(MODELS[family][1](ARCHS[family], num_classes=5, img_size=64, kernel=kernel)).eval()
    weights = our_family(model.state_dict()).to_published(model.state_dict())
    image = torch.randn(1, 3, 65, 70)
    with torch.no_grad():
        assert relative_error(model(image), inline_reference(family, weights, image, kernel)[0]) < 2e-5


def as_given(family, maps):
    """Maps as the backbones give them: in Swin and CSwin those of stages 1 to 3 are normalised without parameters."""
    if family not in ('swin', 'cswin'):
        return maps
    return [*(F.layer_norm(m.movedim(1, 3), m.shape[1:2]).movedim(3, 1) for m in maps[:3]), maps[3]]


def randomised(model):
    """Every weight at random, so large that each of them shows in the outputs."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and name.endswith('weight'):
                parameter.normal_(std=parameter[0].numel() ** -0.5)
            elif name.endswith('weight'):  # of norms
                parameter.normal_(1, 0.2)
            else:
                parameter.normal_(std=0.5)
    return model
