"""int8: layers with weights in whole numbers, the delicate parts of attention in float, in both runtimes."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from helpers import exports_whole_models
from mmengine.registry import MODELS, init_default_scope
from PIL import Image
from small_runs import small_config

from mmsoft.deploy import Result, load
from mmsoft.engine.predictor import Predictor
from mmsoft.exporting import ExportError, export
from mmsoft.exporting.parity import TOLERANCES, compare_answers

pytestmark = exports_whole_models


def pictures(folder, count):
    folder.mkdir()
    for seed in range(count):
        pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((96, 72), Image.Resampling.BICUBIC).save(folder / f'{seed}.png')
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_layers_are_quantised_and_delicate_parts_are_not(tmp_path):
    images, cfg = pictures(tmp_path / 'photos', 4), small_config('classifier', tmp_path, train=1)
    cfg.model.backbone.newton_iters = 2  # a short graph
    init_default_scope(cfg.default_scope)
    state, checkpoint = MODELS.build(cfg.model).state_dict(), str(tmp_path / 'model.pth')
    torch.save(dict(state_dict=state, meta=dict(cfg=cfg.pretty_text)), checkpoint)
    rows = export(None, checkpoint, tmp_path / 'int8.onnx', precision='int8', images=images)
    assert len(rows) == 6, 'two pictures that no range was measured on, at three sizes'
    graph = onnx.load(tmp_path / 'int8.onnx').graph
    stored = [np.prod(w.dims) for w in graph.initializer if w.data_type == onnx.TensorProto.INT8 and len(w.dims) > 1]
    assert sum(stored) > 0.8 * sum(np.prod(w.dims) for w in graph.initializer)
    rounded = {node.output[0] for node in graph.node if node.op_type == 'DequantizeLinear'}
    takers = {node.op_type for node in graph.node if rounded & {*node.input}}
    assert takers == {'Conv', 'Gemm', 'MatMul'}, 'no sum and no norm takes what is rounded'
    landmarks = {name for node in graph.node for name in node.input if '.landmarks.conv.weight' in name}
    assert landmarks
    assert landmarks <= {w.name for w in graph.initializer}, 'kernel exponents are of distances to landmarks'

    picture = images / '0.png'
    expected = Predictor(checkpoint, device='cpu')(picture)
    for runtime in ('onnxruntime', 'openvino'):
        found = load(tmp_path / 'int8.onnx', runtime=runtime)(picture)
        assert found.labels[0] == expected.labels[0]
        assert 0 < np.abs(np.sort(found.scores) - np.sort(expected.scores)).max() < 0.05, runtime


def test_what_int8_needs_is_said(tmp_path):
    few = pictures(tmp_path / 'few', 2)
    with pytest.raises(ExportError, match=r"few' has 2 pictures, and int8 needs at least 3 to measure ranges"):
        export(None, 'none.pth', 'model.onnx', precision='int8', images=few)
    with pytest.raises(ExportError, match='int8, and int8 alone, measures ranges on a folder of pictures'):
        export(None, 'none.pth', 'model.onnx', precision='int8')
    with pytest.raises(ExportError, match='int8, and int8 alone, measures ranges on a folder of pictures'):
        export(None, 'none.pth', 'model.onnx', images=few)
    with pytest.raises(ExportError, match=r'leave out --raw, and let --out end in \.onnx'):
        export(None, 'none.pth', 'model.pt2', precision='int8', images=few)


def test_a_box_elsewhere_is_a_lost_one_and_no_large_difference():
    boxes, scores = np.float32([[0, 0, 10, 10], [50, 50, 90, 90]]), np.float32([0.9, 0.2])
    mine = SimpleNamespace(boxes=boxes, scores=scores, labels=np.array([0, 1]))
    theirs = Result((200, 200), ['a', 'b'], mine.labels, scores, boxes + np.float32([[150], [3]]))
    row = compare_answers(mine, theirs, TOLERANCES['int8'])
    assert (row.boxes, row.labels) == (3, 0.5)
    assert not row.worst_of(TOLERANCES['int8'])
    assert row.worst_of(TOLERANCES['fp16']) == 'boxes'
