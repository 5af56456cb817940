"""What follows the network is what mmdet does."""

import numpy as np
import onnxruntime
import pytest
import torch
from helpers import exports_whole_models
from mmcv.ops import batched_nms
from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask
from mmdet.registry import MODELS, TASK_UTILS
from tensorrt import outside_of_table

from mmsoft.exporting.boxes import best, by_class, decode, paste, regions, suppress, suppress_by_torchvision


def random_boxes(count, seed=0):
    corners = torch.rand(count, 2, 2, generator=torch.Generator().manual_seed(seed)) * 200
    return torch.cat((corners.amin(1), corners.amax(1) + 1), 1)


def test_boxes_are_decoded_as_the_coder_does():
    coder = TASK_UTILS.build(dict(type='mmdet.DeltaXYWHBBoxCoder', target_stds=[0.1, 0.1, 0.2, 0.2]))
    anchors, deltas = random_boxes(500), torch.randn(500, 4) * 20
    expected = coder.decode(anchors, deltas, max_shape=(150, 120))
    torch.testing.assert_close(decode(anchors, deltas, coder, 150, 120), expected)


def test_suppression_is_mmcvs_in_each_class_and_image():
    boxes, scores = random_boxes(600).view(2, 300, 4), torch.rand(2, 300)
    labels = torch.randint(3, (2, 300))
    scores[0, :9] = 0  # no boxes
    for function in (suppress, suppress_by_torchvision):
        kept = function(boxes, by_class(scores, labels, 3), 0.5).amax(1)
        for image in range(2):
            there = scores[image] > 0
            _, index = batched_nms(
                boxes[image][there], scores[image][there], labels[image][there], dict(type='nms', iou_threshold=0.5)
            )
            expected = torch.zeros(300)
            expected[there.nonzero()[:, 0][index]] = scores[image][there][index]
            torch.testing.assert_close(kept[image], expected)


def test_the_best_are_filled_up_with_nothing():
    scores, index = best(torch.tensor([[0.2, 0.9, 0.0]]), 5)
    assert scores.tolist() == [[torch.tensor(0.9).item(), torch.tensor(0.2).item(), 0, 0, 0]]
    assert index[0, :2].tolist() == [1, 0]
    assert index.max() < 3


def test_regions_are_those_of_the_extractor():
    layer = dict(type='RoIAlign', output_size=7, sampling_ratio=0)
    extractor = MODELS.build(
        dict(type='mmdet.SingleRoIExtractor', roi_layer=layer, out_channels=4, featmap_strides=[4, 8, 16, 32])
    )
    maps = [torch.randn(2, 4, 256 // stride, 256 // stride) for stride in (4, 8, 16, 32)]
    boxes = torch.cat((torch.randint(2, (40, 1)).float(), random_boxes(40) * torch.linspace(0.05, 1.2, 40)[:, None]), 1)
    torch.testing.assert_close(regions(maps, boxes, extractor), extractor(maps, boxes))


def test_masks_are_pasted_as_mmdet_does():
    masks, boxes = torch.rand(30, 28, 28), random_boxes(30, seed=2) - 20  # some begin outside
    expected, _ = _do_paste_mask(masks[:, None], boxes, 140, 160, skip_empty=False)
    found = paste(masks, boxes, torch.tensor(140), torch.tensor(160))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


class Halves(torch.nn.Module):
    def forward(self, a, b):
        return a // b, a // 3


@exports_whole_models
@pytest.mark.filterwarnings('ignore')
def test_integers_are_divided_as_torch_does(tmp_path):
    from mmsoft.exporting.graph import OWN_TRANSLATIONS

    a, b = torch.tensor([-7, -6, -1, 0, 1, 6, 7]), torch.tensor([2, -2, -2, 3, 3, -3, -2])
    options = dict(dynamo=True, opset_version=18, custom_translation_table=OWN_TRANSLATIONS, verbose=False)
    torch.onnx.export(Halves(), (a, b), **options).save(tmp_path / 'a.onnx')
    session = onnxruntime.InferenceSession(tmp_path / 'a.onnx')
    found = session.run(None, dict(zip(['a', 'b'], [a.numpy(), b.numpy()], strict=True)))
    np.testing.assert_array_equal(found, [value.numpy() for value in Halves()(a, b)])
    assert not outside_of_table(tmp_path / 'a.onnx')
