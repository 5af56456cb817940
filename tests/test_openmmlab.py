"""The backbone inside real mmdet and mmseg models, built the way their users build it."""

import subprocess
import sys

import pytest
import torch
from backbones import CASES
from helpers import MINI, ROOT, first_on_path
from mmdet.registry import MODELS as DETECTORS
from mmdet.structures import DetDataSample
from mmengine.config import ConfigDict
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData, PixelData
from mmseg.registry import MODELS as SEGMENTORS
from mmseg.structures import SegDataSample

BACKBONE = dict(type='mmsoft.SOFT', arch=MINI)


@pytest.mark.slow
@pytest.mark.parametrize('library', ['mmdet', 'mmseg'])
def test_builds_in_a_fresh_process_without_custom_imports(library, mmcv_without_compiler):
    """Nothing of mmsoft is imported first: MMEngine finds the scope by itself, mmcv what --install wrote."""
    environment = first_on_path(mmcv_without_compiler)
    subprocess.run([sys.executable, '-m', 'mmsoft.mmcv_ops', '--install'], env=environment, check=True)
    code = (
        f'from {library}.registry import MODELS; import sys; assert "mmsoft" not in sys.modules; '
        'from mmengine.registry import init_default_scope; '
        f'init_default_scope("{library}"); '
        'model = MODELS.build(dict(type="mmsoft.SOFT", arch="tiny")); print(model.channels, model.strides)'
    )
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    assert '(64, 128, 320, 512) (4, 8, 16, 32)' in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize('name', ['retinanet_soft_pp_tiny_1x_coco', 'upernet_soft_pp_tiny_160k_ade20k'])
def test_shipped_configs_bring_the_operators(name, mmcv_without_compiler):
    """A program of mmdet's or mmseg's own that only reads the config, with nothing compiled and nothing installed."""
    path = ROOT / 'configs' / f'{name}.py'
    code = (
        'import mmdet.utils, mmseg.registry; from mmengine.config import Config; from mmengine.registry import *; '
        f'cfg = Config.fromfile({str(path)!r}); init_default_scope(cfg.default_scope); '
        'print(type(MODELS.build(cfg.model)).__name__)'
    )
    run = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, env=first_on_path(mmcv_without_compiler)
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] in ('RetinaNet', 'EncoderDecoder')


def retinanet(backbone=BACKBONE, widths=MINI['dims']):
    init_default_scope('mmdet')
    return DETECTORS.build(
        ConfigDict(
            type='RetinaNet',
            data_preprocessor=dict(type='DetDataPreprocessor', mean=[0] * 3, std=[1] * 3, pad_size_divisor=32),
            backbone=dict(backbone, out_indices=(1, 2, 3), frozen_stages=0),
            neck=dict(
                type='FPN', in_channels=list(widths[1:]), out_channels=32, add_extra_convs='on_input', num_outs=5
            ),
            bbox_head=dict(
                type='RetinaHead',
                num_classes=3,
                in_channels=32,
                feat_channels=32,
                stacked_convs=1,
                anchor_generator=dict(
                    type='AnchorGenerator',
                    octave_base_scale=4,
                    scales_per_octave=3,
                    ratios=[0.5, 1.0, 2.0],
                    strides=[8, 16, 32, 64, 128],
                ),
                bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
                loss_cls=dict(type='FocalLoss', use_sigmoid=True),
                loss_bbox=dict(type='L1Loss'),
            ),
            train_cfg=dict(
                assigner=dict(
                    type='MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.4, min_pos_iou=0, ignore_iof_thr=-1
                ),
                sampler=dict(type='PseudoSampler'),
                allowed_border=-1,
                pos_weight=-1,
                debug=False,
            ),
            test_cfg=dict(
                nms_pre=100, min_bbox_size=0, score_thr=0.0, nms=dict(type='nms', iou_threshold=0.5), max_per_img=10
            ),
        )
    )


@pytest.mark.parametrize('case', CASES.values(), ids=CASES.keys())
def test_a_detector_learns_and_predicts(case):
    model = retinanet(dict(type=f'mmsoft.{case.family}', arch=case.arch, **case.options), case.channels)
    model.init_weights()
    sample = DetDataSample(metainfo=dict(img_shape=(100, 150), ori_shape=(100, 150), scale_factor=(1.0, 1.0)))
    sample.gt_instances = InstanceData(
        bboxes=torch.tensor([[10.0, 10.0, 60.0, 70.0], [80.0, 20.0, 140.0, 90.0]]), labels=torch.tensor([0, 2])
    )
    data = model.data_preprocessor(dict(inputs=[torch.randint(255, (3, 100, 150))], data_samples=[sample]), True)
    losses = model(**data, mode='loss')
    sum(sum(v) if isinstance(v, list) else v for v in losses.values()).backward()
    gradients = {name: p.grad is not None for name, p in model.named_parameters() if p.requires_grad}
    assert all(gradients.values()), [name for name, found in gradients.items() if not found]
    frozen = next(p for name, p in model.backbone.named_parameters() if 'embed' in name)
    assert not frozen.requires_grad
    model.eval()
    with torch.no_grad():
        boxes = model(**data, mode='predict')[0].pred_instances.bboxes
    assert boxes.shape == (10, 4)
    assert boxes.isfinite().all()


def test_regions_are_pooled_from_the_right_places():
    """mmcv's RoIAlign takes any memory layout for the usual one: maps, and what necks make of them, must have it."""
    from mmcv.ops import roi_align

    backbone = DETECTORS.build(BACKBONE).eval()
    images = torch.randn(2, 3, 64, 96).contiguous(memory_format=torch.channels_last)
    boxes = torch.tensor([[0, 8.0, 8.0, 40.0, 40.0], [1, 0.0, 16.0, 60.0, 60.0]])
    with torch.no_grad():
        for stride, found in zip(backbone.strides, backbone(images), strict=True):
            usual = torch.empty(found.shape).copy_(found)
            expected = roi_align(usual, boxes, (3, 3), 1 / stride, 0, 'avg', True)
            assert torch.equal(roi_align(found, boxes, (3, 3), 1 / stride, 0, 'avg', True), expected)


def test_a_segmentor_learns_and_predicts():
    init_default_scope('mmseg')
    model = SEGMENTORS.build(
        ConfigDict(
            type='EncoderDecoder',
            data_preprocessor=dict(type='SegDataPreProcessor', mean=[0] * 3, std=[1] * 3, size=(96, 96)),
            backbone=BACKBONE,
            decode_head=dict(
                type='UPerHead',
                in_channels=list(MINI['dims']),
                in_index=[0, 1, 2, 3],
                pool_scales=(1, 2),
                channels=16,
                num_classes=5,
                norm_cfg=dict(type='BN'),
                align_corners=False,
                loss_decode=dict(type='CrossEntropyLoss'),
            ),
            train_cfg=dict(),
            test_cfg=dict(mode='whole'),
        )
    )
    model.init_weights()
    samples = []
    for _ in range(2):
        sample = SegDataSample(metainfo=dict(img_shape=(96, 96), ori_shape=(96, 96)))
        sample.gt_sem_seg = PixelData(data=torch.randint(5, (1, 96, 96)))
        samples.append(sample)
    inputs = [torch.randint(255, (3, 96, 96)) for _ in samples]
    data = model.data_preprocessor(dict(inputs=inputs, data_samples=samples), True)
    losses = model(**data, mode='loss')
    losses['decode.loss_ce'].backward()
    assert all(p.grad is not None for p in model.parameters())
    model.eval()
    odd = model.data_preprocessor(dict(inputs=[torch.randint(255, (3, 75, 101))], data_samples=samples[:1]))
    with torch.no_grad():
        assert model(odd['inputs'], mode='tensor').shape[:2] == (1, 5)


def test_pretrained_weights_reach_a_detector(tmp_path):
    """A classifier's checkpoint, through init_cfg, in a model whose init_weights runs first on everything."""
    from mmsoft.models import SOFTClassifier

    classifier = SOFTClassifier(MINI, num_classes=7)
    torch.save(dict(state_dict=classifier.state_dict()), tmp_path / 'classifier.pth')
    init_default_scope('mmdet')
    model = retinanet()
    model.backbone.init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'classifier.pth'))
    model.init_weights()
    for name, value in model.backbone.state_dict().items():
        assert torch.equal(value, classifier.state_dict()[name]), name
    # and the detector's own checkpoint serves as a start for a backbone
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'detector.pth')
    backbone = SEGMENTORS.build(
        dict(BACKBONE, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'detector.pth')))
    )
    backbone.init_weights()
    assert torch.equal(backbone.stages[2].blocks[0].attn.q.weight, classifier.stages[2].blocks[0].attn.q.weight)


def test_other_initialisers_of_mmengine_work():
    model = SEGMENTORS.build(dict(BACKBONE, init_cfg=dict(type='Constant', layer='Linear', val=0.5, bias=0.25)))
    model.init_weights()
    assert (model.stages[0].blocks[0].attn.proj.weight == 0.5).all()
    assert (model.stages[3].blocks[0].mlp.fc1.bias == 0.25).all()


def test_the_unscoped_name_says_so():
    with pytest.raises(KeyError, match='SOFT'):
        DETECTORS.build(dict(type='SOFT'))


def test_a_misspelt_option_in_a_config_is_named():
    with pytest.raises(TypeError, match=r"no option 'archs'\. Did you mean 'arch'"):
        DETECTORS.build(dict(type='mmsoft.SOFT', archs='small'))
