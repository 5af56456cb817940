"""Rounding may exchange boxes and turn pixels of masks; faults of a file are no rounding."""

from copy import deepcopy

import numpy as np
import pytest
from helpers import exports_whole_models
from small_exports import checkpoint_of

from mmsoft.deploy import Result
from mmsoft.engine.predictor import Predictor
from mmsoft.exporting.doubt import Doubt, overlaps
from mmsoft.exporting.parity import TOLERANCES, compare_answers, pictures_of

pytestmark = exports_whole_models
FP16 = TOLERANCES['fp16']


@pytest.fixture(scope='module', params=['retinanet', 'mask_rcnn'])
def answered(request, tmp_path_factory):
    """The checkpoint's answer, the same as that of a file, and what the checkpoint leaves open."""
    predictor = Predictor(checkpoint_of(request.param, tmp_path_factory.mktemp(request.param)), device='cpu')
    image = np.random.default_rng(0).integers(0, 256, (96, 120, 3), dtype=np.uint8)
    mine = predictor(image)
    assert len(mine.boxes) > 20
    masks = None if mine.masks is None else mine.masks.copy()
    parts = [value.copy() for value in (mine.labels, mine.scores, mine.boxes)]
    return mine, Result(image.shape[:2], list('abc'), *parts, masks=masks), Doubt(predictor, image, FP16, 1.0)


def agrees(mine, theirs, doubt=None):
    return not compare_answers(mine, theirs, FP16, 1.0, doubt).worst_of(FP16)


def exchanged(mine, theirs, doubt):
    """The file with another candidate in the place of a box that overlaps it and scores alike; the pixels between."""
    for number, box in enumerate(mine.boxes):
        known = doubt.candidates
        alike = (overlaps(box, known.boxes) >= 0.6) & (known.labels == mine.labels[number])
        alike &= np.abs(known.scores - mine.scores[number]) < 0.01
        apart = np.abs(known.boxes - box).max(1) * alike
        if apart.max() > 3 * FP16[0]:
            other = deepcopy(theirs)
            other.boxes[number], other.scores[number] = known.boxes[apart.argmax()], known.scores[apart.argmax()]
            return other
    raise AssertionError('no box has a like')


def test_equal_answers_agree_without_doubt(answered):
    mine, theirs, _ = answered
    row = compare_answers(mine, theirs, TOLERANCES['fp32'])
    assert (row.boxes, row.scores, row.labels) == (0, 0, 1)


def test_an_exchanged_box_is_rounding(answered):
    mine, theirs, doubt = answered
    other = exchanged(mine, theirs, doubt)
    assert not agrees(mine, other)
    assert agrees(mine, other, doubt)
    assert len(doubt.candidates.boxes) > len(mine.boxes)
    assert doubt.predictor(doubt.image).boxes.tolist() == mine.boxes.tolist(), 'the model is as it was'


def moved(theirs):
    theirs.boxes += 9


def of_another_class(theirs):
    theirs.labels[:] = (theirs.labels + 1) % 3


def without_the_best(theirs):
    keep = np.argsort(-theirs.scores)[len(theirs.scores) // 4 :]
    for name in ('boxes', 'scores', 'labels', 'masks'):
        if getattr(theirs, name) is not None:
            setattr(theirs, name, getattr(theirs, name)[keep])


def with_boxes_of_nothing(theirs):
    theirs.boxes = np.concatenate((theirs.boxes, theirs.boxes[:9] * 0.37 + 11))
    theirs.labels = np.concatenate((theirs.labels, theirs.labels[:9]))
    theirs.scores = np.concatenate((theirs.scores, np.full(9, 0.987, np.float32)))
    if theirs.masks is not None:
        theirs.masks = np.concatenate((theirs.masks, theirs.masks[:9]))


@pytest.mark.parametrize('fault', [moved, of_another_class, without_the_best, with_boxes_of_nothing])
def test_a_fault_is_none(answered, fault):
    mine, theirs, doubt = answered
    other = deepcopy(theirs)
    fault(other)
    assert not agrees(mine, other)
    assert not agrees(mine, other, doubt)


def test_pixels_at_the_threshold_are_open_and_no_others(answered):
    mine, theirs, doubt = answered
    if mine.masks is None:
        assert not hasattr(doubt.heads[-1], 'mask_head')
        return
    assert 0 < doubt.decided.mean() < 1
    other = deepcopy(theirs)
    other.masks ^= ~doubt.decided
    assert agrees(mine, other, doubt)
    other.masks = np.roll(theirs.masks, 3, axis=2)
    assert not agrees(mine, other, doubt)


def test_large_pictures_are_compared_at_two_megapixels(tmp_path):
    from PIL import Image

    Image.new('RGB', (4000, 3000)).save(tmp_path / 'a.png')
    first, second, _ = (image.shape for image in pictures_of([tmp_path / 'a.png']))
    assert first[0] * first[1] <= 2**21 < 1.01 * first[0] * first[1]
    assert second[:2] == (int(first[0] * 0.6), first[1])
