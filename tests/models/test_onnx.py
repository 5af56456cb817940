"""Backbones through ONNX: onnxruntime gives what torch does, for any number of images."""

import pytest
import torch
from backbones import BATCH, CASES
from helpers import relative_error


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__.startswith('2.6.'), reason="torch 2.6's own exporter fails at BatchNorm")
@pytest.mark.parametrize('case', CASES.values(), ids=CASES.keys())
@pytest.mark.filterwarnings('ignore')
def test_onnxruntime_agrees(case, tmp_path):
    import onnxruntime

    model = case.build().eval()
    shapes = ({0: BATCH},)
    torch.onnx.export(
        model, (torch.randn(2, 3, 70, 97),), tmp_path / 'model.onnx', dynamo=True, dynamic_shapes=shapes, verbose=False
    )
    session = onnxruntime.InferenceSession(tmp_path / 'model.onnx')
    for count in (1, 3):
        x = torch.randn(count, 3, 70, 97)
        found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            for y, expected in zip(found, model(x), strict=True):
                assert relative_error(torch.from_numpy(y), expected) < 1e-4


@pytest.mark.parametrize('name', ['soft', 'inline_pvt'])
@pytest.mark.skipif(torch.__version__.startswith('2.6.'), reason='torch 2.6 cannot tell export from compilation')
def test_an_open_height_or_width_is_refused(name):
    """The graph would have landmarks and tables of the example's size."""
    model, x = CASES[name].build().eval(), torch.randn(2, 3, 64, 96)
    for axis in (2, 3):
        with pytest.raises(Exception, match='height and width cannot be left open in an export') as caught:
            torch.export.export(model, (x,), dynamic_shapes=({axis: torch.export.Dim('side', min=32, max=512)},))
        assert 'the batch alone dynamic' in str(caught.value)
