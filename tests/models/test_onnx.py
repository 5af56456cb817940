"""Backbones through ONNX: onnxruntime gives what torch does, for any number of images."""

import pytest
import torch
from backbones import BATCH, CASES
from helpers import relative_error
from torch.export import Dim


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning')
def test_the_old_tracer_says_that_sizes_are_constants(tmp_path):
    with pytest.warns(UserWarning, match='right for images of 64 x 96 alone, whatever dynamic_axes says'):
        torch.onnx.export(
            CASES['inline_swin'].build().eval(),
            (torch.randn(1, 3, 64, 96),),
            tmp_path / 'model.onnx',
            dynamo=False,
            input_names=['images'],
            dynamic_axes=dict(images={2: 'height', 3: 'width'}),
        )


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__.startswith('2.6.'), reason="torch 2.6's own exporter fails at BatchNorm")
@pytest.mark.filterwarnings('ignore')
def test_a_file_for_any_size_is_not_made_where_a_map_is_one_window(tmp_path):
    """onnxruntime would refuse larger pictures."""
    shapes = {0: BATCH, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    model, path = CASES['inline_swin'].build().eval(), tmp_path / 'model.onnx'
    with pytest.raises(torch.onnx.errors.OnnxExporterError, match=r'a map is a single window of 7.*larger pictures'):
        torch.onnx.export(model, (torch.randn(2, 3, 224, 224),), path, dynamo=True, dynamic_shapes=(shapes,))
    torch.onnx.export(model, (torch.randn(2, 3, 224, 224),), path, dynamo=True)  # of this size alone


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__.startswith('2.6.'), reason="torch 2.6's own exporter fails at BatchNorm")
@pytest.mark.parametrize('case', CASES.values(), ids=CASES.keys())
@pytest.mark.filterwarnings('ignore')
def test_onnxruntime_agrees(case, tmp_path):
    import onnxruntime

    model = case.build().eval()
    # windows that shift follow any size, if the graph is made where no map is a single window
    size, shapes = (70, 97), {0: BATCH}
    if case.family == 'InLineSwin':
        size, shapes = (230, 241), {0: BATCH, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    images, path = torch.randn(2, 3, *size), tmp_path / 'model.onnx'
    torch.onnx.export(model, (images,), path, dynamo=True, dynamic_shapes=(shapes,), verbose=False)
    session = onnxruntime.InferenceSession(path)
    for shape in ((1, 3, *size), (3, 3, 70, 97)):
        x = torch.randn(shape)
        found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            for y, expected in zip(found, model(x), strict=True):
                assert relative_error(torch.from_numpy(y), expected) < 1e-4
