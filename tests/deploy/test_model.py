"""What surrounds the network of a file: large photographs do not ask for more memory than there is."""

import numpy as np
import pytest

from mmsoft.deploy import model
from mmsoft.deploy.model import Model

BOX = np.array([0.2, 0.3, 0.7, 0.9])  # of the width and height


class Known:
    """A runtime that finds the same box, filled, in every picture; keeps what it was asked for."""

    def __init__(self):
        self.asked = []

    def run(self, inputs):
        height, width = inputs['size']
        count = len(inputs['images'])
        self.asked.append((count, int(height), int(width)))
        left, top, right, bottom = BOX * [width, height, width, height]
        rows, columns = np.arange(height)[:, None] + 0.5, np.arange(width) + 0.5
        mask = (rows > top) & (rows < bottom) & (columns > left) & (columns < right)
        boxes = np.float32([[left, top, right, bottom]] * count)
        return boxes, np.ones(count), np.zeros(count, int), np.arange(count), np.stack([mask] * count)


class Boxed(Model):
    def __init__(self):
        self.runtime, self.task, self.classes = Known(), 'masks', ('kite',)
        self.steps = {'exif': True, 'scale': (80, 60), 'keep_ratio': False}


class Halves:
    """A runtime for which the left half of every picture is of class 0, the right of class 1."""

    def __init__(self):
        self.asked = []

    def run(self, inputs):
        height, width = map(int, inputs['size'])
        count = len(inputs['images'])
        self.asked.append((count, height, width))
        return [np.broadcast_to(np.arange(width) >= width / 2, (count, height, width)).astype(np.int64)]


class Labelled(Model):
    def __init__(self):
        self.runtime, self.task, self.classes = Halves(), 'labels', ('left', 'right')
        self.steps = {'exif': True, 'scale': (80, 60), 'keep_ratio': False}


def test_label_maps_of_large_pictures_are_made_small_and_alone(monkeypatch):
    monkeypatch.setattr(model, 'PASTED', 100_000)
    labelled = Labelled()
    for found in labelled([np.zeros((900, 1200, 3), np.uint8)] * 2):
        assert found.size == found.label_map.shape == (900, 1200)
        assert not found.label_map[:, :597].any()
        assert found.label_map[:, 603:].all()
    assert all(count == 1 and 90_000 < height * width <= 100_000 for count, height, width in labelled.runtime.asked)
    assert len(labelled.runtime.asked) == 2
    small = np.zeros((150, 200, 3), np.uint8)
    labelled([small] * 3)
    assert labelled.runtime.asked[2:] == [(3, 150, 200)]


@pytest.mark.parametrize('shape', [(900, 1200), (901, 1200), (300, 3001)])
def test_masks_of_large_pictures_are_pasted_small(shape, monkeypatch):
    monkeypatch.setattr(model, 'PASTED', 100_000)
    boxed, (height, width) = Boxed(), shape
    found = boxed(np.zeros((*shape, 3), np.uint8))
    ((_, rows, columns),) = boxed.runtime.asked
    assert 90_000 < rows * columns <= 100_000
    assert found.size == shape
    np.testing.assert_allclose(found.boxes, [BOX * [width, height, width, height]], rtol=1e-5)
    assert found.masks.shape == (1, *shape)
    left, top, right, bottom = (BOX * [width, height, width, height]).round().astype(int)
    exact = np.zeros(shape, bool)
    exact[top:bottom, left:right] = True
    both, either = (found.masks[0] & exact).sum(), (found.masks[0] | exact).sum()
    assert both / either > 0.98


def test_many_pictures_with_masks_go_alone_where_together_they_are_large(monkeypatch):
    monkeypatch.setattr(model, 'PASTED', 100_000)
    boxed, small = Boxed(), np.zeros((150, 200, 3), np.uint8)
    assert len(boxed([small] * 3)) == len(boxed([small] * 4)) - 1 == 3
    assert boxed.runtime.asked == [(3, 150, 200)] + [(1, 150, 200)] * 4
