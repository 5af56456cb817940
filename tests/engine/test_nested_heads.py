"""Methods whose heads are nested, and that tell their number of classes elsewhere than others."""

import json
from pathlib import Path

import cv2
import mmdet
import mmseg
import numpy as np
import pytest
import torch
from helpers import MINI
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmsoft import Predictor
from mmsoft.datasets.miniature import write_world
from mmsoft.engine.browse import browse
from mmsoft.engine.complexity import count_parts
from mmsoft.engine.parts import LOADERS
from mmsoft.engine.predict import predict
from mmsoft.engine.training import evaluate, train

ZOO = dict(mmdet=Path(mmdet.__path__[0], '.mim/configs'), mmseg=Path(mmseg.__path__[0], '.mim/configs'))
BACKBONE = dict(type='mmsoft.SOFT', arch=MINI, out_indices=(0, 1, 2, 3))
DIMS = list(MINI['dims'])
LAYERS = dict(encoder=dict(num_layers=1))
QUERIES = dict(in_channels=DIMS, num_queries=5, pixel_decoder=LAYERS, transformer_decoder=dict(num_layers=2))


# config -> library, classes, key of its entries in results.json
CASES = {
    'knet/knet-s3_r50-d8_fcn_8xb2-adamw-80k_ade20k-512x512.py': ('mmseg', 150, None),
    'mask2former/mask2former_r50_8xb2-lsj-50e_coco.py': ('mmdet', 80, 'score'),
    'mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py': ('mmdet', 133, 'score'),
    'panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py': ('mmdet', 133, 'segment_id'),
}


def small(name):
    cfg = Config.fromfile(ZOO[CASES[name][0]] / name)
    cfg.model.backbone = BACKBONE
    cfg.model.pop('pretrained', None)
    if 'knet' in name:
        head = cfg.model.decode_head
        head.update(num_stages=1, kernel_update_head=head.kernel_update_head[:1])
        head.kernel_generate_head.in_channels, cfg.model.auxiliary_head.in_channels = DIMS[-1], DIMS[2]
    elif 'mask2former' in name:
        cfg.merge_from_dict(dict(model=dict(panoptic_head=QUERIES)))
    else:
        cfg.model.neck.in_channels = DIMS
        cfg.model.test_cfg.rcnn.score_thr = 0.0
        cfg.model.test_cfg.rpn.max_per_img = 20
        cfg.model.test_cfg.panoptic.stuff_area_limit = 1
    for step in cfg.test_dataloader.dataset.pipeline:
        if 'scale' in step:
            step.scale = (96, 64)
    return cfg


CASCADE = 'cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py'


def stages():
    cfg = Config.fromfile(ZOO['mmdet'] / CASCADE)
    cfg.model.backbone, cfg.model.neck.in_channels, cfg.model.test_cfg.rpn.max_per_img = BACKBONE, DIMS, 20
    return cfg


@pytest.mark.parametrize('name', [*CASES, CASCADE])
def test_multiply_adds_of_nested_heads_are_counted_in_full(name):
    """Of stages of heads, heads of stuff and heads that ask for a sample; nothing that runs in testing is left out."""
    parts, remarks = count_parts(stages() if name == CASCADE else small(name), (64, 96))
    outer = [part for part in parts[:-1] if not part.name.startswith(' ')]
    assert sum(part.parameters for part in outer) == parts[-1].parameters
    assert sum(part.macs or 0 for part in outer) == parts[-1].macs
    assert [part.name for part in outer if not part.macs] == ['auxiliary_head'] * ('knet' in name)
    if name == CASCADE:
        assert {f'roi_head.mask_head.{stage}' for stage in range(3)} < {part.name for part in outer}
        assert remarks[1] == '20 proposals, the most that the config permits, and 20 masks'


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_methods_with_nested_heads_predict(name, tmp_path):
    _, classes, key = CASES[name]
    cfg = small(name)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    path, image = tmp_path / 'epoch_1.pth', np.random.default_rng(0).integers(256, size=(64, 96, 3), dtype=np.uint8)
    torch.save(dict(state_dict=model.state_dict(), meta=dict(cfg=cfg.pretty_text)), path)
    predictor = Predictor(path, device='cpu')
    assert len(predictor.meta['classes']) == classes
    found = predictor(image)
    assert found.draw(0.0).size == (96, 64)
    if classes != 80:
        assert found.label_map.shape == (64, 96)
        assert found.label_map.max() <= classes
    cv2.imwrite(str(tmp_path / 'a.png'), image)
    assert predict(None, str(path), [str(tmp_path / 'a.png')], tmp_path / 'out', 'cpu') == (1, {})
    if key:
        entries = json.loads((tmp_path / 'out' / 'results.json').read_text())
        assert entries
        assert all(key in entry and entry['segmentation']['size'] == [64, 96] for entry in entries)
    else:
        assert (tmp_path / 'out' / 'labels' / 'a.png').is_file()


def shortest(name, folder):
    """One iteration on two drawn pictures."""
    cfg, library = small(name), CASES[name][0]
    root = write_world(dict(mmdet='coco', mmseg='ade20k')[library], folder, train=2, val=2, size=(64, 96))
    for loader in LOADERS:
        cfg[loader].update(num_workers=0, persistent_workers=False)
        cfg[loader].dataset.data_root = f'{root}/'
        for step in cfg[loader].dataset.pipeline:
            step.update({key: size for key, size in dict(scale=(96, 64), crop_size=(64, 64)).items() if key in step})
    if library == 'mmseg':
        cfg.model.data_preprocessor.size = (64, 64)
    else:
        cfg.model.data_preprocessor.batch_augments[0].size = (64, 64)
        cfg.val_evaluator.ann_file = cfg.test_evaluator.ann_file = f'{root}/annotations/instances_val2017.json'
    cfg.param_scheduler, cfg.default_hooks.checkpoint.interval = [], 1
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=1, val_interval=1)
    return cfg


@pytest.mark.slow
@pytest.mark.parametrize('name', [*CASES][:2])
def test_methods_with_nested_heads_are_browsed_trained_and_tested(name, tmp_path):
    assert browse(shortest(name, tmp_path), tmp_path / 'seen', count=1).is_file()
    train(shortest(name, tmp_path), work_dir=str(tmp_path / 'run'))
    path = tmp_path / 'run' / 'iter_1.pth'
    evaluate(shortest(name, tmp_path), str(path), work_dir=str(tmp_path / 'tested'))
    assert json.loads((tmp_path / 'tested' / 'metrics.json').read_text())
    found = Predictor(path, device='cpu')(np.zeros((64, 96, 3), np.uint8))  # as our tools save it, and alone
    assert len(found.meta['classes']) == CASES[name][1]


# config -> library, and the parts that are not called in testing
COUNTED = {
    'condinst/condinst_r50_fpn_ms-poly-90k_coco_instance.py': ('mmdet', []),
    'cascade_rpn/cascade-rpn_faster-rcnn_r50-caffe_fpn_1x_coco.py': ('mmdet', []),
    'sparse_rcnn/sparse-rcnn_r50_fpn_1x_coco.py': ('mmdet', ['rpn_head']),  # learned boxes
    'point_rend/pointrend_r50_4xb2-80k_cityscapes-512x1024.py': ('mmseg', []),
    'mask2former/mask2former_r50_8xb2-90k_cityscapes-512x1024.py': ('mmseg', []),
}


def test_a_model_without_proposals_of_its_own_is_not_counted():
    cfg = Config.fromfile(ZOO['mmdet'] / 'fast_rcnn/fast-rcnn_r50_fpn_1x_coco.py')
    cfg.model.backbone, cfg.model.neck.in_channels = BACKBONE, DIMS
    with pytest.raises(ValueError, match='FastRCNN takes proposals of another model, and nobody says how many'):
        count_parts(cfg, (64, 96))


@pytest.mark.slow
@pytest.mark.parametrize('name', COUNTED)
def test_heads_that_ask_for_values_or_for_a_loss_are_counted(name):
    library, idle = COUNTED[name]
    cfg = Config.fromfile(ZOO[library] / name)
    cfg.model.backbone = BACKBONE
    if 'neck' in cfg.model:
        cfg.model.neck.in_channels = DIMS
    else:
        cfg.merge_from_dict(dict(model=dict(decode_head=QUERIES)))
    *parts, total = count_parts(cfg, (64, 96))[0]
    assert [part.name for part in parts if part.macs is None] == idle
    found = sum(part.macs or 0 for part in parts if not part.name.startswith(' '))
    assert found <= total.macs < 1.01 * found  # Mask2Former's head of mmseg joins masks outside of its forward
    assert sum(part.parameters for part in parts if not part.name.startswith(' ')) == total.parameters
    assert all(part.macs for part in parts if part.name not in idle)
