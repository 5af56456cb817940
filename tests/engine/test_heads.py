"""Every head of every method has the classes of the data, or one sentence says what to set before a model is built."""

import ast
import re
from pathlib import Path

import mmdet
import mmseg
import pytest
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

import mmsoft
from mmsoft.engine.config import check_levels, load_config
from mmsoft.engine.heads import check_heads, head_counts, set_counts
from mmsoft.engine.tasks import CLASSIFICATION, SEMANTIC_SEGMENTATION, task_of

SHIPPED = sorted(path.stem for path in Path(mmsoft.config_path('retinanet_soft_pp_tiny_1x_coco')).parent.glob('*_*.py'))
TWO = dict(classes=('cat', 'dog'))


def zoo(path):
    """A config of mmdet or mmseg."""
    library = dict(mmdet=mmdet, mmseg=mmseg)[path.split('/')[0]]
    cfg = Config.fromfile(Path(library.__file__).with_name('.mim') / 'configs' / path.split('/', 1)[1])
    init_default_scope(library.__name__)
    return cfg


def name_classes(cfg, **metainfo):
    cfg.train_dataloader = dict(dataset=dict(cfg.train_dataloader.dataset, metainfo=metainfo))
    return cfg


@pytest.mark.parametrize('name', SHIPPED)
def test_shipped_configs_fit_their_data(name):
    cfg = load_config(mmsoft.config_path(name))
    init_default_scope(cfg.default_scope)
    if task_of(cfg) is not CLASSIFICATION:
        assert dict(head_counts(cfg.model))
        for mode in ('train', 'val', 'test'):
            check_heads(cfg, mode)


FITTING = (
    *('mmdet/htc/htc_r50_fpn_1x_coco.py', 'mmdet/panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py'),
    *('mmdet/mask2former/mask2former_r50_8xb2-lsj-50e_coco-panoptic.py', 'mmdet/rpn/rpn_r50_fpn_1x_coco.py'),
    *('mmdet/mask2former/mask2former_r50_8xb2-lsj-50e_coco.py', 'mmdet/queryinst/queryinst_r50_fpn_1x_coco.py'),
    *('mmdet/grounding_dino/grounding_dino_swin-t_finetune_16xb2_1x_coco.py', 'mmdet/pascal_voc/ssd300_voc0712.py'),
    *('mmdet/deepsort/deepsort_faster-rcnn_r50_fpn_8xb2-4e_mot17halftrain_test-mot17halfval.py',),
    *('mmseg/mask2former/mask2former_r50_8xb2-160k_ade20k-512x512.py',),
    *('mmseg/knet/knet-s3_r50-d8_fcn_8xb2-adamw-80k_ade20k-512x512.py',),
    *('mmseg/stdc/stdc1_4xb12-80k_cityscapes-512x1024.py', 'mmseg/vpd/vpd_sd_4xb8-25k_nyu-480x480.py'),
)


@pytest.mark.parametrize('path', FITTING)
def test_methods_of_both_zoos_fit_their_data(path):
    cfg = zoo(path)
    for mode in ('train', 'val', 'test'):
        if cfg.get(f'{mode}_dataloader'):
            check_heads(cfg, mode)


ROI = [f'model.roi_head.{name}.num_classes' for name in ('bbox_head', 'mask_head')]
MISFITS = {
    'mmdet/mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py': dict.fromkeys(ROI, 2),
    'mmdet/cascade_rcnn/cascade-rcnn_r50_fpn_1x_coco.py': {
        f'model.roi_head.bbox_head.{stage}.num_classes': 2 for stage in range(3)
    },
    'mmdet/dino/dino-4scale_r50_8xb2-12e_coco.py': {'model.bbox_head.num_classes': 2},
    'mmdet/solov2/solov2_r50_fpn_1x_coco.py': {'model.mask_head.num_classes': 2},
    'mmdet/mask2former/mask2former_r50_8xb2-lsj-50e_coco.py': {'model.panoptic_head.num_things_classes': 2},
    'mmseg/pspnet/pspnet_r50-d8_4xb4-80k_ade20k-512x512.py': {
        'model.decode_head.num_classes': 2,
        'model.auxiliary_head.num_classes': 2,
    },
    'mmseg/knet/knet-s3_r50-d8_fcn_8xb2-adamw-80k_ade20k-512x512.py': {
        **{f'model.decode_head.kernel_update_head.{stage}.num_classes': 2 for stage in range(3)},
        'model.decode_head.kernel_generate_head.num_classes': 2,
        'model.auxiliary_head.num_classes': 2,
    },
}


@pytest.mark.parametrize('path', MISFITS)
def test_each_head_that_does_not_fit_is_named_with_what_mends_it(path):
    cfg = name_classes(zoo(path), classes=('wall', 'sky'))  # mmseg takes only classes of the data set's own
    with pytest.raises(ValueError, match=r'the train data \(\w+\) has 2 classes, but model\.') as caught:
        check_heads(cfg, 'train')
    options = dict(re.findall(r' (model\.[\w.]+)=(\d+)', str(caught.value)))
    counts = {name: int(count) for name, count in options.items()}
    assert MISFITS[path].items() <= counts.items()
    cfg.merge_from_dict(counts)
    check_heads(cfg, 'train')


def test_one_wrong_head_is_enough_and_a_count_that_is_left_to_the_class_is_one():
    cfg = name_classes(zoo('mmdet/mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'), **TWO)
    cfg.model.roi_head.bbox_head.num_classes = cfg.model.roi_head.mask_head.num_classes = 2
    check_heads(cfg, 'train')
    del cfg.model.roi_head.mask_head.num_classes
    with pytest.raises(ValueError, match=r'but model\.roi_head\.mask_head\.num_classes is 80: set'):
        check_heads(cfg, 'train')
    cfg.model.roi_head.mask_head.class_agnostic = True
    check_heads(cfg, 'train')


def test_panoptic_heads_tell_things_and_stuff():
    cfg = zoo('mmdet/panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py')
    name_classes(cfg, classes=('cat', 'dog', 'sky'), thing_classes=('cat', 'dog'), stuff_classes=('sky',))
    with pytest.raises(ValueError, match='has 3 classes') as caught:
        check_heads(cfg, 'train')
    heads = ('semantic_head', 'panoptic_fusion_head')
    for name in (*ROI, *(f'model.{head}.num_things_classes' for head in heads)):
        assert f'{name}=2' in str(caught.value)
    for head in heads:
        assert f'model.{head}.num_stuff_classes=1' in str(caught.value)


def test_labels_are_counted_by_nested_heads():
    assert SEMANTIC_SEGMENTATION.label_count(zoo(FITTING[-3])) == 150


def test_only_the_auxiliary_head_wrong_is_said_too():
    """Its labels would be out of bounds in the first iteration."""
    cfg = zoo('mmseg/upernet/upernet_r50_4xb4-80k_ade20k-512x512.py')
    cfg.model.auxiliary_head.num_classes = 2
    with pytest.raises(
        ValueError, match=r'has 150 classes, but model\.auxiliary_head\.num_classes is 2: set --cfg'
    ) as e:
        SEMANTIC_SEGMENTATION.check(cfg, 'train')
    assert 'model.auxiliary_head.num_classes=150,' in str(e.value)
    assert 'decode_head' not in str(e.value)


def test_a_weight_a_class_is_mended_with_its_head():
    """Of Mask2Former: two classes, and none."""
    cfg = name_classes(zoo('mmdet/mask2former/mask2former_r50_8xb2-lsj-50e_coco.py'), **TWO)
    with pytest.raises(ValueError, match='the train data') as caught:
        check_heads(cfg, 'train')
    options = re.search(r'--cfg-options (.*), or name', str(caught.value))[1].split()
    assert 'model.panoptic_head.loss_cls.class_weight=[1.0,1.0,0.1]' in options
    cfg.merge_from_dict({name: ast.literal_eval(value) for name, value in (option.split('=') for option in options)})
    check_heads(cfg, 'train')
    assert cfg.model.panoptic_head.loss_cls.class_weight == [1.0, 1.0, 0.1]


def test_weights_of_other_classes_are_left_out():
    """Of CGNet: as rare as classes of Cityscapes are."""
    cfg = zoo('mmseg/cgnet/cgnet_fcn_4xb4-60k_cityscapes-680x680.py')
    assert len(set(cfg.model.decode_head.loss_decode.class_weight)) == 19
    set_counts(cfg, {'model.decode_head.num_classes': 3})
    assert cfg.model.decode_head.loss_decode.class_weight is None


def test_weights_of_several_losses_are_seen():
    """Of PIDNet, whose head has four, three with weights of Cityscapes' classes."""
    cfg = zoo('mmseg/pidnet/pidnet-s_2xb6-120k_1024x1024-cityscapes.py')

    def weights():
        return [len(loss.get('class_weight') or ()) for loss in cfg.model.decode_head.loss_decode]

    assert weights() == [19, 19, 0, 19]
    set_counts(cfg, {'model.decode_head.num_classes': 3})
    assert weights() == [0] * 4


def test_maps_that_nobody_reads_are_said_before_processes_wait_for_them():
    cfg = load_config(mmsoft.config_path('retinanet_inline_pvt_tiny_1x_coco'))
    check_levels(cfg)  # stages are read by those that follow
    cfg.model.backbone = dict(type='mmsoft.InLineDeiT', arch='tiny')
    cfg.model.neck.in_channels = [48, 96, 192, 192]
    with pytest.raises(ValueError, match='begins at level 1, and nobody reads') as caught:
        check_levels(cfg)
    options = str(caught.value).split('--cfg-options ')[1].split()
    cfg.merge_from_dict({name: ast.literal_eval(value) for name, value in (option.split('=') for option in options)})
    check_levels(cfg)
    backbone = MODELS.build(cfg.model.backbone)
    assert list(backbone.channels) == cfg.model.neck.in_channels
    assert list(backbone.pyramid.levels) == ['1', '2', '3']
