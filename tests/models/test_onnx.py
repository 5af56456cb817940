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
