"""Detectors and segmentors as the authors of MILA and RAVLT publish them: made by mmdet 2 and mmseg 0, heads included.

The names and shapes of heads are written out here, as those libraries have them.
"""

import pytest
import torch
from helpers import Golden, relative_error
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from small_runs import SHIPPED, WORLDS, dump, narrow_model, small_config

import mmsoft
from mmsoft.checkpoints import CheckpointError, from_published, load_weights, names_for
from mmsoft.engine.config import load_config
from mmsoft.engine.fine_tuning import _same_names
from mmsoft.engine.predictor import load_model
from mmsoft.engine.training import evaluate

# The narrow networks of the authors' outputs.
ARCH = dict(
    mila=dict(dims=(16, 32, 64, 128), heads=(2, 2, 4, 4), depths=(1, 2, 1, 1)),
    ravlt=dict(dims=(16, 32, 48, 64), heads=(1, 2, 3, 4), depths=(1, 2, 2, 1)),
)
CONFIGS = {
    ('retinanet', 'ravlt'): 'retinanet_ravlt_tiny_1x_coco',
    ('mask_rcnn', 'mila'): 'mask_rcnn_mila_tiny_1x_coco',
    ('mask_rcnn', 'ravlt'): 'mask_rcnn_ravlt_tiny_1x_coco',
    ('upernet', 'mila'): 'upernet_mila_base_160k_ade20k',
    ('upernet', 'ravlt'): 'upernet_ravlt_small_160k_ade20k',
    ('semantic_fpn', 'ravlt'): 'semantic_fpn_ravlt_tiny_80k_ade20k',
}
CLASSES = dict(retinanet=80, mask_rcnn=80, upernet=150, semantic_fpn=150)
C = 32  # channels of all heads


def biased(**shapes):
    """Shapes of weights, and of a bias for each."""
    for name, shape in shapes.items():
        name = name.replace('__', '.')
        yield f'{name}.weight', shape
        yield f'{name}.bias', (shape[1] if 'upsample' in name else shape[0],)


def normed(name, *shape):
    """Of mmcv's ConvModule with BatchNorm, whose convolution has no bias."""
    yield f'{name}.conv.weight', shape
    for part in ('weight', 'bias', 'running_mean', 'running_var'):
        yield f'{name}.bn.{part}', shape[:1]
    yield f'{name}.bn.num_batches_tracked', ()


def retinanet(dims, classes):
    for i, dim in enumerate(dims[1:]):
        yield from biased(**{f'neck__lateral_convs__{i}__conv': (C, dim, 1, 1)})
    for i, dim in enumerate((C, C, C, dims[3], C)):
        yield from biased(**{f'neck__fpn_convs__{i}__conv': (C, dim, 3, 3)})
    for i in range(4):
        yield from biased(**{f'bbox_head__{kind}_convs__{i}__conv': (C, C, 3, 3) for kind in ('cls', 'reg')})
    yield from biased(bbox_head__retina_cls=(9 * classes, C, 3, 3), bbox_head__retina_reg=(9 * 4, C, 3, 3))


def mask_rcnn(dims, classes):
    for i, dim in enumerate(dims):
        convs = {f'neck__lateral_convs__{i}__conv': (C, dim, 1, 1), f'neck__fpn_convs__{i}__conv': (C, C, 3, 3)}
        yield from biased(**convs)
    yield from biased(rpn_head__rpn_conv=(C, C, 3, 3), rpn_head__rpn_cls=(3, C, 1, 1), rpn_head__rpn_reg=(12, C, 1, 1))
    boxes, masks = 'roi_head__bbox_head__', 'roi_head__mask_head__'
    yield from biased(**{f'{boxes}shared_fcs__0': (C, 49 * C), f'{boxes}shared_fcs__1': (C, C)})
    yield from biased(**{f'{boxes}fc_cls': (classes + 1, C), f'{boxes}fc_reg': (4 * classes, C)})
    yield from biased(**{f'{masks}convs__{i}__conv': (C, C, 3, 3) for i in range(4)})
    yield from biased(**{f'{masks}upsample': (C, C, 2, 2), f'{masks}conv_logits': (classes, C, 1, 1)})


def upernet(dims, classes):
    for i in range(4):
        yield from normed(f'decode_head.psp_modules.{i}.1', C, dims[3], 1, 1)
    for i, dim in enumerate(dims[:3]):
        yield from normed(f'decode_head.lateral_convs.{i}', C, dim, 1, 1)
        yield from normed(f'decode_head.fpn_convs.{i}', C, C, 3, 3)
    yield from normed('decode_head.bottleneck', C, dims[3] + 4 * C, 3, 3)
    yield from normed('decode_head.fpn_bottleneck', C, 4 * C, 3, 3)
    yield from normed('auxiliary_head.convs.0', C, dims[2], 3, 3)
    yield from biased(decode_head__conv_seg=(classes, C, 1, 1), auxiliary_head__conv_seg=(classes, C, 1, 1))


def semantic_fpn(dims, classes):
    for i, dim in enumerate(dims):
        convs = {f'neck__lateral_convs__{i}__conv': (C, dim, 1, 1), f'neck__fpn_convs__{i}__conv': (C, C, 3, 3)}
        yield from biased(**convs)
    for i in range(4):
        for k in range(max(i, 1)):  # with what enlarges a map between them
            yield from normed(f'decode_head.scale_heads.{i}.{2 * k}', C, C, 3, 3)
    yield from biased(decode_head__conv_seg=(classes, C, 1, 1))


def published(method, family):
    """A file of the authors' trainer: the backbone of their outputs, and heads at random."""
    golden, random = Golden(family), torch.Generator().manual_seed(0)
    heads = dict(mila=('head.', 'norm.'), ravlt=('head.', 'proj.', 'norm.'))[family]
    backbone = {name: x for name, x in golden.weights.items() if not name.startswith(heads)}
    backbone |= {n.removeprefix('sd_dense/'): x for n, x in golden.outputs.items() if n.startswith('sd_dense/')}
    if family == 'mila':
        backbone['layers.0.blocks.0.attn.rope.rotations'] = torch.zeros(56, 56, 8, 2)
    shapes = globals()[method](ARCH[family]['dims'], CLASSES[method])
    heads = {name: torch.rand(shape, generator=random) * 0.1 + 0.01 * name.endswith('var') for name, shape in shapes}
    names = [f'class {i}' for i in range(CLASSES[method])]
    meta = dict(mmdet_version='2.25.2+0', CLASSES=tuple(names), PALETTE=None, env_info='', epoch=12, iter=9, config='')
    meta['fp16'] = dict(loss_scaler=dict(scale=512.0, cur_iter=9))
    optimizer = dict(state={0: dict(step=9, exp_avg=torch.zeros(2))}, param_groups=[dict(lr=1e-6, params=[0])])
    weights = {f'backbone.{name}': value for name, value in backbone.items()} | heads
    return dict(meta=meta, state_dict=weights, optimizer=optimizer), heads, golden


def narrow(cfg, family):
    narrow_model(cfg.model)
    dims = list(ARCH[family]['dims'])
    cfg.model.backbone.arch = ARCH[family]
    if 'neck' in cfg.model:
        cfg.model.neck.in_channels = [dims[i] for i in cfg.model.backbone.get('out_indices', range(4))]
    else:
        cfg.model.decode_head.in_channels, cfg.model.auxiliary_head.in_channels = dims, dims[2]
    return cfg


@pytest.mark.parametrize(('method', 'family'), CONFIGS)
def test_they_load_whole_into_our_configs(method, family):
    """Every tensor of the model is theirs; the backbone gives their outputs."""
    content, heads, golden = published(method, family)
    cfg = narrow(load_config(mmsoft.config_path(CONFIGS[method, family])), family)
    cfg.model.backbone.init_cfg = None
    init_default_scope(cfg.default_scope)
    model = revert_sync_batchnorm(MODELS.build(cfg.model)).eval()
    report = load_weights(model, names_for(model, content), source='theirs')
    assert report.complete
    assert not report.fresh
    unread = 1 if method == 'retinanet' else 0  # the norm of stride 4
    assert report.left_aside == [f'backbone.pyramid.levels.0.{part}' for part in ('weight', 'bias')[: 2 * unread]]
    own = model.state_dict()
    assert all(torch.equal(own[name], x) for name, x in heads.items() if not name.endswith('tracked'))
    assert {name for name in own if not name.startswith('backbone.')} == set(heads)
    size = min(golden.inputs, key=lambda size: golden.inputs[size].numel())
    with torch.no_grad():
        maps = model.backbone(golden.inputs[size])
    for i, y in enumerate(maps, start=1 + unread):
        assert relative_error(y[:, :, ::3, ::3], golden.outputs[f'dense{i}/{size}']) < 1e-5
    lacking = {name: x for name, x in content['state_dict'].items() if not name.endswith(('conv_seg.bias', 'reg.bias'))}
    with pytest.raises(CheckpointError, match=r'missing +[12] '):
        load_weights(model, names_for(model, lacking), source='theirs')


@pytest.mark.slow
@pytest.mark.parametrize(('method', 'family'), CONFIGS)
def test_their_tools(method, family, tmp_path, monkeypatch):
    """test.py runs on such a file, predictions have the class names in it, and the backbone alone is had from it."""
    content, heads, _ = published(method, family)
    file, segmentor = str(tmp_path / 'theirs.pth'), CLASSES[method] == 150
    torch.save(content, file)
    monkeypatch.setitem(SHIPPED, method, CONFIGS[method, family])
    monkeypatch.setitem(WORLDS, method, 'ade20k' if segmentor else 'coco')
    cfg = narrow(small_config(method, tmp_path, train=1), family)
    if method == 'mask_rcnn':
        cfg.model.test_cfg.rcnn.update(score_thr=0.0, max_per_img=2)
        cfg.model.test_cfg.rpn.max_per_img = 10
    elif method == 'retinanet':
        cfg.model.test_cfg.update(score_thr=0.0, max_per_img=2)
    path = dump(cfg, tmp_path)
    metrics = evaluate(load_config(path), file, work_dir=str(tmp_path / 'work'))
    wanted = {'mIoU'} if segmentor else {f'coco/{kind}_mAP' for kind in ('bbox', 'segm')[: 1 + (method == 'mask_rcnn')]}
    assert wanted <= set(metrics)
    model, meta = load_model(load_config(path), file, device='cpu')
    assert meta['classes'][:2] == ('class 0', 'class 1')
    own = model.state_dict()
    assert all(torch.equal(own[name], value) for name, value in heads.items() if not name.endswith('tracked'))
    assert not _same_names(load_config(path), content['meta'])  # the data set's
    options = dict(num_heads=ARCH['mila']['heads']) if family == 'mila' else {}
    backbone = from_published(file, **options).state_dict()
    own = model.backbone.state_dict()
    assert own.keys() <= backbone.keys()
    assert all(torch.equal(value, backbone[name]) for name, value in own.items())
