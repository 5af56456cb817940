"""``--img-size`` of detectors and segmentors: pipelines, padding, windows and position tables follow."""

from pathlib import Path

import mmdet
import mmseg
import pytest
from mmengine.config import Config

import mmsoft
from mmsoft.engine.config import load_config, model_for, set_img_size
from mmsoft.engine.parts import pipelines, walk_dicts
from mmsoft.models import SOFT

LIBRARIES = dict(mmdet=mmdet, mmseg=mmseg)
KEYS = ('scale', 'scales', 'crop_size', 'img_scale', 'size', 'border')


def sizes_of(cfg, mode):
    steps = walk_dicts(list(pipelines(cfg[f'{mode}_dataloader'].dataset)))
    return [(key, step[key]) for step in steps for key in KEYS if isinstance(step.get(key), (tuple, list))]


def zoo(library, name):
    return Config.fromfile(Path(LIBRARIES[library].__file__).with_name('.mim') / 'configs' / name)


def shipped(name):
    return load_config(mmsoft.config_path(name))


def test_boxes_are_resized_in_training_and_in_testing():
    cfg = shipped('retinanet_soft_pp_tiny_1x_coco')
    set_img_size(cfg, (400, 640))
    for mode in ('train', 'val', 'test'):
        assert sizes_of(cfg, mode) == [('scale', (640, 400))]
    assert cfg.model.backbone.img_size == [400, 640]


def test_several_scales_keep_their_range():
    cfg = shipped('retinanet_soft_pp_tiny_3x_ms_coco')
    set_img_size(cfg, (400, 667))
    ((_, scales),) = sizes_of(cfg, 'train')
    assert scales[0] == (667, 240)
    assert scales[-1] == (667, 400)
    assert len(scales) == 11


def test_a_long_and_a_short_side_come_in_any_order():
    """Of DINO, whose scales are (480, 1333) in training and (1333, 800) in testing."""
    cfg = zoo('mmdet', 'dino/dino-4scale_r50_8xb2-12e_coco.py')
    set_img_size(cfg, (400, 333))
    scales = sizes_of(cfg, 'train')[0][1]
    assert (scales[0], scales[-1]) == ((240, 333), (400, 333))
    assert sizes_of(cfg, 'test') == [('scale', (333, 400))]


def test_crops_of_segmentors_are_what_is_meant():
    """Height first, as mmseg has it; pictures are resized by the same factor."""
    cfg = shipped('upernet_soft_pp_tiny_160k_ade20k')
    set_img_size(cfg, (256, 512))
    assert sizes_of(cfg, 'train') == [('scale', (2048, 256)), ('crop_size', (256, 512))]
    assert sizes_of(cfg, 'val') == [('scale', (2048, 256))]
    assert cfg.model.data_preprocessor.size == (256, 512)
    assert cfg.model.backbone.img_size == [256, 512]


ZOO = {
    'mmdet/rtmdet/rtmdet_l_8xb32-300e_coco.py': (
        [('img_scale', (320, 256)), ('scale', (640, 512)), ('crop_size', (320, 256)), ('size', (320, 256))],
        [('scale', (320, 256)), ('size', (320, 256))],
    ),
    'mmdet/yolox/yolox_s_8xb8-300e_coco.py': (
        [('img_scale', (320, 256)), ('border', (-160, -128)), ('img_scale', (320, 256))],
        [('scale', (320, 256))],
    ),
}


@pytest.mark.parametrize('path', ZOO)
def test_pipelines_of_other_methods_follow(path):
    library, _, name = path.partition('/')
    cfg = zoo(library, name)
    set_img_size(cfg, (256, 320))
    train, test = ZOO[path]
    assert sizes_of(cfg, 'train')[: len(train)] == train
    assert sizes_of(cfg, 'test') == test
    if 'rtmdet' in path:
        assert cfg.custom_hooks[-1].switch_pipeline[3].crop_size == (320, 256)
    assert 'img_size' not in cfg.model.backbone  # which is none of ours


def test_windows_in_testing_follow():
    cfg = Config.fromfile(
        Path(mmseg.__file__).with_name('.mim') / 'configs/segmenter/segmenter_vit-t_mask_8xb1-160k_ade20k-512x512.py'
    )
    set_img_size(cfg, 256)
    assert (cfg.model.test_cfg.crop_size, cfg.model.test_cfg.stride) == ((256, 256), (240, 240))


def test_tables_of_a_checkpoint_are_kept():
    cfg = shipped('retinanet_soft_pp_tiny_1x_coco')
    weights = SOFT('tiny', img_size=(64, 96)).state_dict()
    model = model_for(cfg, {f'backbone.{name}': value for name, value in weights.items()})
    assert model.backbone.img_size == [64, 96]


def test_sides_are_checked():
    with pytest.raises(ValueError, match=r'sides of at least 32; got 16'):
        set_img_size(shipped('retinanet_soft_pp_tiny_1x_coco'), (16, 64))
    with pytest.raises(ValueError, match=r'a height and a width, or one number for both; got \(1, 2, 3\)'):
        set_img_size(shipped('retinanet_soft_pp_tiny_1x_coco'), (1, 2, 3))
    with pytest.raises(ValueError, match=r"a classifier's pictures are square; got --img-size 64 96"):
        set_img_size(shipped('soft_pp_tiny_300e_in1k'), (64, 96))


def test_crops_around_centres_are_resized_with_all_else():
    cfg = zoo('mmdet', 'centernet/centernet_r18_8xb16-crop512-140e_coco.py')
    set_img_size(cfg, (128, 192))
    assert ('crop_size', (128, 192)) in sizes_of(cfg, 'train')
    assert ('scale', (192, 128)) in sizes_of(cfg, 'train')
