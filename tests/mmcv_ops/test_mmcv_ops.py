"""mmcv's operators without a compiler: against compiled mmcv's results, torchvision and float64 references.

Where mmcv is compiled, this tests that ours stay out of the way; ``ours`` calls them all the same.
"""

import itertools
import math
import subprocess
import sys
from pathlib import Path

import mmcv_cases
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from fresh_python import ALONE, python
from helpers import first_on_path, relative_error
from mmcv_cases import Draw, with_gradients

from mmsoft import mmcv_ops
from mmsoft.mmcv_ops import ext
from mmsoft.mmcv_ops.regions import roi_pool_backward

import mmcv.ops  # isort: skip - after mmsoft, which gives it operators

HALVES = [torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    """Every module of mmcv.ops calls our operators, also where mmcv is compiled."""
    for module in [m for name, m in sys.modules.items() if name.startswith('mmcv.ops.')]:
        if hasattr(module, 'ext_module'):
            monkeypatch.setattr(module, 'ext_module', ext)


def test_compiled_mmcv_gives_the_same(device):
    with np.load(mmcv_cases.FILE) as kept:
        expected = dict(kept)
    found = mmcv_cases.results(str(device))
    assert found.keys() == expected.keys()
    assert len(found) > 70
    for name, value in found.items():
        assert value.shape == expected[name].shape, name
        if value.dtype == np.int64:
            assert (value == expected[name]).all(), name
        else:
            assert np.abs(value - expected[name]).max() <= 2e-5 * np.abs(expected[name]).max(), name


def test_nothing_to_do_is_done():
    from mmcv.ops import carafe, nms, nms_match, roi_align, soft_nms

    boxes, scores = torch.zeros(0, 4), torch.zeros(0)
    assert nms(boxes, scores, 0.5)[1].dtype == torch.int64
    assert len(soft_nms(boxes, scores)[0]) == 0
    assert nms_match(torch.zeros(0, 5), 0.5) == []
    maps = torch.randn(2, 3, 8, 8, requires_grad=True)
    pooled = roi_align(maps, torch.zeros(0, 5), (7, 7), 1.0, 0, 'avg', True)
    assert pooled.shape == (0, 3, 7, 7)
    pooled.sum().backward()
    assert not maps.grad.any()
    masks = torch.zeros(0, 9, 16, 16, requires_grad=True)  # a mask head's upsampling without a positive region
    spread = carafe(maps[:0], masks, 3, 1, 2)
    assert spread.shape == (0, 3, 16, 16)
    spread.sum().backward()
    assert masks.grad.shape == masks.shape


def test_the_layout_in_memory_does_not_matter():
    """Gradients come back as mmcv allocates them: channels last for such inputs."""
    from mmcv.ops import carafe, deform_conv2d, modulated_deform_conv2d, roi_align

    draw = Draw(17)
    maps, weight, rois = draw(2, 4, 5, 4), draw(6, 4, 3, 3), draw.rois(3, 2, 20)
    offset, mask = draw(2, 18, 5, 4), draw.uniform(2, 9, 5, 4)
    larger = draw(2, 18, 9, 7), draw.uniform(2, 9, 9, 7)
    cases = (
        (lambda x: roi_align(x, rois, (3, 3), 0.25, 2, 'avg', True), maps),
        (lambda x, o: deform_conv2d(x, o, weight, 1, 1), maps, offset),
        (lambda x, o, m: modulated_deform_conv2d(x, o, m, weight, None, 1, 1), maps, offset, mask),
        (lambda x, m: carafe(x, m, 3, 2, 2), maps, draw(2, 18, 10, 8)),
    )
    for function, *inputs in cases:
        last = [x.contiguous(memory_format=torch.channels_last) for x in inputs]
        found, expected = with_gradients(function, *last), with_gradients(function, *inputs)
        for name, value in expected.items():
            assert relative_error(found[name], value) < 1e-5, name
    # offsets of a larger level are read in the order of memory: the values, in that order, of the contiguous ones
    last = [x.contiguous(memory_format=torch.channels_last) for x in larger]
    found = with_gradients(cases[2][0], maps, *last)
    expected = with_gradients(cases[2][0], maps, *larger)
    for name, value in expected.items():
        assert value.abs().sum() > 0
        assert relative_error(found[name], value) < 1e-5, name


def test_nms_is_torchvisions_and_knows_numpy():
    from mmcv.ops import nms

    boxes, scores = Draw(5).boxes(200), Draw(6).uniform(200)
    expected = torchvision.ops.nms(boxes, scores, 0.5)
    assert torch.equal(nms(boxes, scores, 0.5)[1], expected)
    assert (nms(boxes.numpy(), scores.numpy(), 0.5)[1] == expected.numpy()).all()


def test_regions_are_torchvisions():
    from mmcv.ops import roi_align

    draw = Draw(7)
    maps, rois = draw(2, 3, 13, 17), draw.rois(20, 2, 60)
    found = with_gradients(lambda x: roi_align(x, rois, (4, 7), 0.25, 2, 'avg', True), maps)
    expected = with_gradients(lambda x: torchvision.ops.roi_align(x, rois, (4, 7), 0.25, 2, True), maps)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with pytest.raises(NotImplementedError, match="pool_mode='max' needs mmcv with its compiled operators"):
        roi_align(maps, rois, (4, 7), 0.25, 2, 'max', True)


def slow_roi_pool(maps, rois, bins, scale):
    """By the definition: maxima over whole pixels that a bin touches, of regions whose last pixel counts."""
    rows = []
    for image, x1, y1, x2, y2 in rois.tolist():
        start, size = (y1 * scale, x1 * scale), ((y2 + 1 - y1) * scale, (x2 + 1 - x1) * scale)
        pooled = maps.new_zeros(maps.shape[1], *bins)
        for row in range(bins[0]):
            for column in range(bins[1]):
                window = maps[int(image)]
                for axis, place in ((1, row), (2, column)):
                    step = size[axis - 1] / bins[axis - 1]
                    low = min(max(math.floor(place * step + start[axis - 1]), 0), maps.shape[axis + 1])
                    high = min(max(math.ceil((place + 1) * step + start[axis - 1]), 0), maps.shape[axis + 1])
                    window = window.narrow(axis, low, max(high - low, 0))
                if window.numel() and min(size) > 0:
                    pooled[:, row, column] = window.flatten(1).amax(1)
        rows.append(pooled)
    return torch.stack(rows)


def test_roi_pool():
    from mmcv.ops import roi_pool

    draw = Draw(8)
    maps, rois = draw(2, 3, 9, 12), draw.rois(12, 2, 40)
    rois = torch.cat((rois, torch.tensor([[0, 20.0, 3.0, 10.0, 9.0]])))  # inside out: pools nothing
    found = with_gradients(lambda x: roi_pool(x, rois, (3, 4), 0.25), maps.double())
    expected = with_gradients(lambda x: slow_roi_pool(x, rois, (3, 4), 0.25), maps.double())
    for name, value in expected.items():
        assert relative_error(found[name], value) < 1e-12, name
    half = torch.zeros(2, 3, 9, 12, dtype=torch.float16)  # sums of many regions do not round one by one
    many, places = torch.zeros(3000, 5), torch.zeros(3000, 3, 1, 1, dtype=torch.int32)
    roi_pool_backward(torch.ones(3000, 3, 1, 1).half(), many, places, half, 1, 1, 1.0)
    assert half[0, 0, 0, 0] == 3000


def test_deformable_regions():
    from mmcv.ops.deform_roi_pool import deform_roi_pool

    draw = Draw(9)
    maps, rois = draw(2, 3, 13, 17), draw.rois(6, 2, 60).double().clamp(min=0)
    for ratio in (0, 2):  # unmoved, they are RoIAlign's
        for offset in (None, torch.zeros(6, 2, 4, 5)):
            found = with_gradients(
                lambda x, o=offset, r=ratio: deform_roi_pool(x, rois.float(), o, (4, 5), 0.25, r), maps
            )
            expected = with_gradients(
                lambda x, r=ratio: torchvision.ops.roi_align(x, rois.float(), (4, 5), 0.25, r, True), maps
            )
            for name, value in expected.items():
                assert relative_error(found[name], value) < 1e-5, name
    offset = draw(6, 2, 4, 5).double()
    sizes = rois[:, 3:] - rois[:, 1:3]  # a move by the whole region's size times gamma is a move of the region
    moves = 0.3 * sizes * torch.tensor([1.0, -0.5])
    moved = torch.cat((rois[:, :1], rois[:, 1:3] + moves, rois[:, 3:] + moves), dim=1)
    same = torch.tensor([1.0, -0.5]).view(1, 2, 1, 1).expand(6, 2, 4, 5).double()
    found = deform_roi_pool(maps.double(), rois, same, (4, 5), 0.25, 2, 0.3)
    assert relative_error(found, torchvision.ops.roi_align(maps.double(), moved, (4, 5), 0.25, 2, True)) < 1e-12
    inputs = maps[:, :1, :7, :8].double().requires_grad_(), (offset[:2, :, :2, :2]).clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, o: deform_roi_pool(x, rois[:2] / 2, o, (2, 2), 0.25, 2), inputs)


def test_focal_losses():
    from mmcv.ops import sigmoid_focal_loss, softmax_focal_loss

    draw = Draw(10)
    logits, weight = draw(7, 4, scale=4).double(), torch.tensor([0.5, 1.0, 2.0, 3.0]).double()
    target = torch.tensor([0, 1, 2, 3, 4, 0, 3])  # 4 is background
    one_hot = F.one_hot(target, 5)[:, :4].double()
    found = with_gradients(lambda x: sigmoid_focal_loss(x, target, 1.5, 0.3, None, 'none'), logits)
    expected = with_gradients(lambda x: torchvision.ops.sigmoid_focal_loss(x, one_hot, 0.3, 1.5, 'none'), logits)
    rows = torch.cat((weight, weight.new_ones(1)))[target][:, None]  # background keeps its loss
    weighed = with_gradients(lambda x: sigmoid_focal_loss(x, target, 1.5, 0.3, weight, 'none'), logits)
    for name, value in expected.items():
        assert relative_error(found[name], value) < 1e-12, name
        assert relative_error(weighed[name], value * rows) < 1e-12, name
    for reduction in ('mean', 'sum'):
        total = sigmoid_focal_loss(logits, target, 1.5, 0.3, None, reduction)
        assert torch.isclose(total, expected['output'].sum() / (7 if reduction == 'mean' else 1))

    target = torch.tensor([0, 1, 2, 3, 2, 0, -1])  # a negative one costs nothing

    def slow(x):
        log_p = x.log_softmax(1)[torch.arange(7), target]
        return (-0.3 * (1 - log_p.exp()) ** 1.5 * log_p * (target >= 0)).sum() / 7

    found = with_gradients(lambda x: softmax_focal_loss(x, target, 1.5, 0.3), logits)
    expected = with_gradients(slow, logits)
    for name, value in expected.items():
        assert relative_error(found[name], value) < 1e-12, name
    extreme = torch.tensor([[200.0, -200.0]], requires_grad=True)
    for loss in (sigmoid_focal_loss, softmax_focal_loss):
        for label, gamma in itertools.product((0, 1), (0.0, 0.5, 2.0)):
            (gradient,) = torch.autograd.grad(loss(extreme, torch.tensor([label]), gamma, 0.25), extreme)
            assert gradient.isfinite().all()


def test_what_is_not_a_number_moves_nothing_and_ends_no_process():
    """A model that diverged asks for such places: mmcv finds zeros there, torchvision reads any memory."""
    from mmcv.ops import DeformConv2d, ModulatedDeformConv2d, RoIAlign

    x, wild = torch.randn(1, 4, 8, 8), torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30])
    for layer in (DeformConv2d(4, 4, 3, padding=1), ModulatedDeformConv2d(4, 4, 3, padding=1)):
        offset, mask = torch.zeros(1, 18, 8, 8), [torch.ones(1, 9, 8, 8)] * isinstance(layer, ModulatedDeformConv2d)
        plain = layer(x, offset, *mask)
        offset[0, :4, 3, 3] = wild
        offset.requires_grad_()
        found = layer(x, offset, *mask)
        found.sum().backward()
        assert found.isfinite().all()
        assert offset.grad.isfinite().all()
        places = (found - plain).abs().sum(1)[0] > 0
        assert places.nonzero().tolist() == [[3, 3]]
    rois = torch.tensor([[0, 1, 1, value, 5] for value in wild])
    assert RoIAlign(2, 1.0, 2)(x, rois).isfinite().all()


def test_multi_scale_attention():
    from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction

    draw = Draw(11)
    shapes, width = [(5, 4), (2, 3)], 3
    value, locations = draw(2, 26, 2, width).double(), draw.uniform(2, 3, 2, 2, 2, 2).double() * 1.4 - 0.2
    weights = draw.uniform(2, 3, 2, 2, 2).double()

    def fast(value, locations, weights):
        start = torch.tensor([0, 20])
        return MultiScaleDeformableAttnFunction.apply(value, torch.tensor(shapes), start, locations, weights, 64)

    def slow(value, locations, weights):
        """Sample by sample; pixel i lies at (i + 1/2) / size, and beyond the border is nothing."""
        output = value.new_zeros(2, 3, 2, width)
        for b, q, h, level, p in np.ndindex(2, 3, 2, 2, 2):
            rows, columns = shapes[level]
            first = 20 * level
            x, y = locations[b, q, h, level, p] * value.new_tensor([columns, rows]) - 0.5
            for row in (math.floor(y), math.floor(y) + 1):
                for column in (math.floor(x), math.floor(x) + 1):
                    if 0 <= row < rows and 0 <= column < columns:
                        share = (1 - (y - row).abs()) * (1 - (x - column).abs()) * weights[b, q, h, level, p]
                        output[b, q, h] = output[b, q, h] + share * value[b, first + row * columns + column, h]
        return output.flatten(2)

    found, expected = (with_gradients(function, value, locations, weights) for function in (fast, slow))
    for name, tensor in expected.items():
        assert relative_error(found[name], tensor) < 1e-12, name


def test_carafe():
    from mmcv.ops.carafe import carafe, carafe_naive

    draw = Draw(12)
    features, masks = draw(2, 6, 5, 4).double(), draw(2, 3 * 9, 10, 8).double()

    def slow(features, masks):
        windows = F.unfold(features, 3, padding=1).view(2, 6, 9, 5, 4)
        near = windows.repeat_interleave(2, 3).repeat_interleave(2, 4)
        return (near.view(2, 3, 2, 9, 10, 8) * masks.view(2, 3, 1, 9, 10, 8)).sum(3).view(2, 6, 10, 8)

    expected = with_gradients(slow, features, masks)
    found = with_gradients(lambda x, m: carafe(x, m, 3, 3, 2), features, masks)
    for name, value in expected.items():
        assert relative_error(found[name], value) < 1e-12, name
    assert relative_error(carafe_naive(features, masks, 3, 3, 2), expected['output']) < 1e-12


def test_masked_convolution():
    from mmcv.ops import MaskedConv2d

    layer, x = MaskedConv2d(3, 5, (3, 5), padding=(1, 2)).eval(), torch.randn(1, 3, 7, 9)
    for mask in (torch.rand(1, 7, 9) - 0.5, torch.zeros(1, 7, 9)):
        with torch.no_grad():
            expected = F.conv2d(x, layer.weight, layer.bias, padding=(1, 2)) * (mask > 0)
            assert torch.allclose(layer(x, mask), expected, atol=1e-5)
            with torch.autocast('cpu', torch.bfloat16):
                assert torch.allclose(layer(x, mask).float(), expected, atol=0.05)


def test_sync_batch_norm(tmp_path):
    from mmcv.ops import SyncBatchNorm

    torch.distributed.init_process_group('gloo', f'file://{tmp_path}/store', rank=0, world_size=1)
    try:
        ours, torchs = SyncBatchNorm(4), torch.nn.BatchNorm2d(4)
        torchs.load_state_dict(ours.state_dict())
        x = torch.randn(3, 4, 5, 6) * 3 + 1
        found, expected = with_gradients(ours, x), with_gradients(torchs, x)
        for name, value in expected.items():
            assert relative_error(found[name], value) < 1e-5, name
        for layer in (ours, torchs):
            (layer(x) * x.exp()).sum().backward()
        for name in ('weight', 'bias'):
            assert relative_error(getattr(ours, name).grad, getattr(torchs, name).grad) < 1e-5, name
        assert torch.allclose(ours.running_var, torchs.running_var)
        assert torch.allclose(ours.running_mean, torchs.running_mean)
    finally:
        torch.distributed.destroy_process_group()


def test_rotated_overlaps_are_shapelys():
    from mmcv.ops import box_iou_rotated, nms_rotated
    from shapely.affinity import rotate
    from shapely.geometry import box

    def polygon(x, y, width, height, angle):
        return rotate(box(x - width / 2, y - height / 2, x + width / 2, y + height / 2), angle, use_radians=True)

    boxes = Draw(13).rotated(25)
    boxes = torch.cat((boxes, boxes[:3], torch.tensor([[10.0, 10, 8, 8, 0], [14.0, 10, 8, 8, math.pi / 2]])))
    polygons = [polygon(*row) for row in boxes.double().tolist()]
    expected = torch.tensor([[p.intersection(q).area / p.union(q).area for q in polygons] for p in polygons])
    assert (box_iou_rotated(boxes, boxes) - expected).abs().max() < 1e-5
    assert box_iou_rotated(boxes[:0], boxes).shape == (0, 30)
    assert not box_iou_rotated(boxes.clone().requires_grad_(), boxes).requires_grad
    scores, labels = Draw(14).uniform(30), torch.arange(30) % 2
    alone = [nms_rotated(boxes[labels == i], scores[labels == i], 0.2)[1] for i in (0, 1)]
    _, kept = nms_rotated(boxes, scores, 0.2, labels=labels)
    assert sorted(kept.tolist()) == sorted(torch.cat([alone[i] * 2 + i for i in (0, 1)]).tolist())


def test_lanes():
    """By the definition: two lanes compete where their mean distance over shared rows is below the threshold."""
    draw = Draw(15)
    lanes, scores = torch.zeros(40, 77), draw.uniform(40)
    lanes[:, 2], lanes[:, 4] = draw.uniform(40), (draw.uniform(40) * 72).round()
    lanes[:, 5:] = draw.uniform(40, 1) * 100 + draw(40, 72)

    def rivals(a, b):
        starts = [int(lane[2] * 71 + 0.5) for lane in (a, b)]
        ends = [start + int(lane[4]) - 1 for start, lane in zip(starts, (a, b), strict=True)]
        first, last = max(starts), min(*ends, 71)
        return last >= first and (a[5:] - b[5:]).abs()[first : last + 1].mean() < 20

    kept, parents = [], [0] * 40
    for i in scores.argsort(descending=True).tolist():
        by = next((j for j in kept if rivals(lanes[j], lanes[i])), None)
        kept += [i] if by is None else []
        parents[i] = len(kept) if by is None else kept.index(by) + 1
    found, count, found_parents = ext.line_nms_forward(lanes, scores, 20.0, 40)
    assert 3 < len(kept) < 40
    assert found[:count].tolist() == kept
    assert found_parents.tolist() == parents
    assert ext.line_nms_forward(lanes, scores, 20.0, 2)[1] == 2


@pytest.mark.parametrize('dtype', HALVES, ids=str)
def test_half_precision(dtype):
    """Results are those of float32 on the same values, rounded once."""
    draw = Draw(16)
    rois = draw.rois(5, 2, 40).to(dtype).float()

    def check(function, *inputs):
        halves = [x.to(dtype) for x in inputs]
        found, expected = (with_gradients(function, *[x.to(kind) for x in halves]) for kind in (dtype, torch.float32))
        for name, value in found.items():
            assert value.dtype == dtype, name
            assert relative_error(value, expected[name]) < 3 * torch.finfo(dtype).eps, name

    maps, offset, mask = draw(2, 4, 9, 11), draw(2, 18, 9, 11), draw.uniform(2, 9, 9, 11)
    weight, ops = draw(4, 4, 3, 3), mmcv.ops
    check(lambda x: ops.roi_align(x, rois.to(x.dtype), (3, 3), 0.25, 2, 'avg', True), maps)
    check(lambda x: ops.roi_pool(x, rois, (3, 3), 0.25), maps)
    check(lambda x, o: ops.deform_roi_pool(x, rois, o, (3, 3), 0.25, 2), maps, draw(5, 2, 3, 3))
    check(lambda x, o, w: ops.deform_conv2d(x, o, w, 1, 1), maps, offset, weight)
    check(lambda x, o, m, w: ops.modulated_deform_conv2d(x, o, m, w, None, 1, 1), maps, offset, mask, weight)
    check(lambda x, m: ops.carafe(x, m, 3, 2, 2), maps, draw(2, 18, 18, 22))
    check(lambda x: ops.psa_mask.psa_mask(x, 0, (3, 5)), draw(2, 15, 5, 4))
    check(lambda x: ops.softmax_focal_loss(x, torch.arange(5) % 4, 2.0, 0.25), draw(5, 4))
    check(lambda x: ops.sigmoid_focal_loss(x, torch.arange(5), 2.0, 0.25, None, 'none'), draw(5, 4))
    boxes, scores = draw.boxes(50).to(dtype), draw.uniform(50).to(dtype)
    for name in ('nms', 'soft_nms'):
        suppress = getattr(ops, name)
        halves, floats = (suppress(boxes.to(kind), scores.to(kind), 0.5)[1] for kind in (dtype, torch.float32))
        assert torch.equal(halves, floats)


def test_what_is_left_out_says_so_when_it_is_called():
    with pytest.raises(
        NotImplementedError, match=r"'chamfer_distance_forward' needs mmcv .* Build mmcv with MMCV_WITH_OPS=1 "
    ):
        ext.chamfer_distance_forward(1, mode=2)
    assert not hasattr(ext, '__wrapped__')


def test_the_version_of_the_compiler_is_told():
    from mmcv.utils import collect_env

    if mmcv_ops.provider()[0] != 'compiled':
        assert collect_env()['MMCV Compiler'] == 'none: mmsoft.mmcv_ops'


def run(code, path):
    return subprocess.run(
        [sys.executable, '-c', code], cwd=path, capture_output=True, text=True, env=first_on_path(path)
    )


def tool(path, option):
    command = [sys.executable, '-m', 'mmsoft.mmcv_ops', option]
    return subprocess.run(command, cwd=path, capture_output=True, text=True, env=first_on_path(path))


@pytest.mark.slow
def test_installed_for_programs_that_import_mmcv_first(mmcv_without_compiler):
    path = mmcv_without_compiler
    first = 'import sys, mmcv.ops; print("mmsoft.registry" in sys.modules, mmcv.ops.get_compiler_version())'
    assert "No module named 'mmcv._ext'" in run(first, path).stderr
    assert run(f'import mmsoft; {first}', path).stdout == 'False none: mmsoft.mmcv_ops\n'
    assert 'active: ' in tool(path, '--status').stdout
    assert 'is not there, or is not of this command' in tool(path, '--remove').stderr
    assert 'now gives mmcv the operators of mmsoft' in tool(path, '--install').stdout
    assert 'installed: ' in tool(path, '--status').stdout
    assert run(first, path).stdout == 'False none: mmsoft.mmcv_ops\n'
    assert tool(path, '--install').returncode == 0
    assert 'is removed' in tool(path, '--remove').stdout
    assert not (path / 'mmcv' / '_ext.py').exists()
    left = path / 'left'  # by an uninstall, beside the line that --install wrote
    (left / 'mmcv').mkdir(parents=True)
    (left / 'mmcv' / '_ext.py').write_text(mmcv_ops.LINE)
    alone = f'{ALONE}\nfrom mmsoft.mmcv_ops import __main__ as tool; print(tool.status())'
    assert python(alone, path=left).stdout.startswith('missing: mmcv is not installed, or only a folder')
    (path / 'mmcv' / '_ext.py').write_text('nms = None\n')
    assert 'foreign: ' in tool(path, '--status').stdout
    for option in ('--install', '--remove'):
        refused = tool(path, option)
        assert refused.returncode == 1
        assert 'is not of this command' in refused.stderr
    assert (path / 'mmcv' / '_ext.py').read_text() == 'nms = None\n'


@pytest.mark.slow
def test_compiled_operators_are_never_overridden(mmcv_without_compiler):
    """A compiled module, here any other extension module by its name, is found first, also beside an installed line."""
    import _testcapi  # an extension module that CPython brings

    path = mmcv_without_compiler
    assert tool(path, '--install').returncode == 0
    suffix = Path(_testcapi.__file__).name.removeprefix('_testcapi')
    (path / 'mmcv' / f'_ext{suffix}').write_bytes(Path(_testcapi.__file__).read_bytes())
    code = 'import mmsoft; print(mmsoft.mmcv_ops.provider()[0]); import mmcv._ext'
    broken = run(code, path)
    assert broken.stdout == 'compiled\n'
    assert 'dynamic module does not define module export function (PyInit__ext)' in broken.stderr
    refused = tool(path, '--install')
    assert refused.returncode == 1
    assert 'mmcv has compiled operators' in refused.stderr
