"""``--raw``: a method whose answers no file knows how to make gives its network."""

import numpy as np
import onnxruntime
import pytest
import torch
from backbones import CASES
from helpers import exports_whole_models
from mmengine.registry import MODELS, init_default_scope
from small_runs import small_config

from mmsoft.exporting import ExportError, export
from mmsoft.exporting.graph import least_side
from mmsoft.exporting.whole import RawNetwork

pytestmark = exports_whole_models


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_another_detector_gives_its_network(tmp_path):
    cfg = small_config('retinanet', tmp_path, train=1)
    head = dict(
        type='FCOSHead', num_classes=80, in_channels=32, feat_channels=32, stacked_convs=1, centerness_on_reg=True
    )
    cfg.model.update(type='FCOS', train_cfg=None)
    cfg.model.backbone.newton_iters = 2  # a short graph
    cfg.model.bbox_head = dict(head, strides=[8, 16, 32, 64, 128])
    init_default_scope('mmdet')
    model = MODELS.build(cfg.model).eval()
    torch.save(dict(state_dict=model.state_dict(), meta=dict(cfg=cfg.pretty_text)), tmp_path / 'fcos.pth')
    with pytest.raises(
        ExportError, match=r'FCOS has no export of the whole model, .*: export its network alone with --raw'
    ):
        export(None, str(tmp_path / 'fcos.pth'), tmp_path / 'fcos.onnx')

    rows = export(None, str(tmp_path / 'fcos.pth'), tmp_path / 'fcos.onnx', raw=True)
    assert all(row.scores < 1e-3 for row in rows)
    images = torch.rand(2, 3, 96, 160) * 255  # RGB, of whole strides
    steps = model.data_preprocessor
    with torch.no_grad():
        scores, boxes, centres = model((images - steps.mean) / steps.std, mode='tensor')
    session = onnxruntime.InferenceSession(tmp_path / 'fcos.onnx')
    found = session.run(None, dict(images=images.numpy()))
    for one, other in zip(found, [*scores, *boxes, *centres], strict=True):
        assert np.abs(one - other.numpy()).max() < 1e-3 * other.abs().max()


@pytest.mark.parametrize(
    ('family', 'multiple', 'least'),
    [
        ('soft_pp', 1, 17),
        ('soft_pp', 32, 1),
        ('inline_cswin', 1, 33),
        ('mila', 1, 33),
        ('ravlt', 32, 33),
        ('inline_swin', 1, 225),
        ('inline_swin', 32, 225),
    ],
)
def test_least_sides_follow_the_backbone(family, multiple, least):
    network = RawNetwork(CASES[family].build(), [0.0] * 3, [1.0] * 3, bgr=False, multiple=multiple)
    assert least_side(network) == least
