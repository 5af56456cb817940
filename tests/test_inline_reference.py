"""The InLine networks against the authors' outputs and against an independent float64 reference."""

import pytest
from conftest import Golden, relative_error
from inline_reference import inline_reference

FAMILIES = ('pvt', 'swin', 'deit', 'cswin')


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
