"""Pictures are prepared as OpenCV, Pillow and torchvision prepare them in testing."""

import cv2
import mmcv
import numpy as np
import pytest
from PIL import Image

from mmsoft.datasets.class_folders import make_transform
from mmsoft.deploy import PictureError, read_picture
from mmsoft.deploy.pictures import prepare, resize, resized_sides


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_resizing_is_opencvs_to_the_bit():
    sides = np.random.default_rng(1).integers(1, 200, (40, 4)).tolist()
    for h, w, height, width in [*sides, (60, 80, 30, 40), (60, 80, 30, 41), (1, 1, 9, 9), (9, 7, 1, 1)]:
        image = noise(h, w, 3, seed=h)
        expected = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
        np.testing.assert_array_equal(resize(image, height, width), expected, str((h, w, height, width)))


@pytest.mark.parametrize('sides', [(480, 640), (640, 480), (37, 1000), (3000, 4000), (801, 1333)])
def test_sides_are_those_of_mmcv(sides):
    wanted = mmcv.imrescale(np.zeros((*sides, 3), np.uint8), (1333, 800)).shape[:2]
    assert resized_sides(sides, (1333, 800), True) == wanted
    assert resized_sides(sides, (512, 256), False) == (256, 512)


@pytest.mark.parametrize('sides', [(300, 451), (451, 300), (90, 70), (256, 256), (20, 500)])
def test_classifiers_see_what_torchvision_crops(sides):
    image = noise(*sides, 3)
    transform = make_transform(
        dict(input_size=96, crop_pct=0.875, interpolation='bicubic', mean=(0,) * 3, std=(1,) * 3)
    )
    found = prepare(image, dict(resize=int(96 / 0.875), crop=[96, 96], interpolation='bicubic'))
    expected = transform(Image.fromarray(image)).numpy() * 255
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_strip_that_would_fill_the_memory_is_refused():
    strip = np.zeros((2, 65_000, 3), np.uint8)
    with pytest.raises(
        PictureError, match='a picture of 65000 x 2 would be resized to sides of 256 and 8320000 before'
    ):
        prepare(strip, dict(resize=256, crop=[224, 224], interpolation='bicubic'))


def test_pictures_of_every_mode_are_read_as_opencv_reads_them(tmp_path):
    for name, image in dict(
        colour=Image.fromarray(noise(9, 12, 3)), grey=Image.fromarray(noise(9, 12)), flat=Image.new('P', (12, 9), 3)
    ).items():
        image.save(tmp_path / f'{name}.png')
        expected = cv2.imread(str(tmp_path / f'{name}.png'))
        np.testing.assert_array_equal(read_picture(tmp_path / f'{name}.png')[..., ::-1], expected, name)
        np.testing.assert_array_equal(read_picture(expected)[..., ::-1], expected)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    Image.fromarray(cv2.resize(noise(4, 3, 3), (48, 64))).save(tmp_path / 'turned.jpg', exif=exif, quality=95)
    assert read_picture(tmp_path / 'turned.jpg').shape == (48, 64, 3)
    np.testing.assert_array_equal(
        read_picture(tmp_path / 'turned.jpg')[..., ::-1], cv2.imread(str(tmp_path / 'turned.jpg'))
    )
    assert read_picture(str(tmp_path / 'turned.jpg'), exif=False).shape == (64, 48, 3)


def test_what_is_no_picture_gets_a_sentence(tmp_path):
    (tmp_path / 'text.jpg').write_text('no picture')
    with pytest.raises(PictureError, match=r"text\.jpg' is no picture that Pillow can read: cannot identify"):
        read_picture(tmp_path / 'text.jpg')
    with pytest.raises(FileNotFoundError, match='there is no such picture'):
        read_picture('nowhere.jpg')
    with pytest.raises(PictureError, match=r'must be \(H, W, 3\) of uint8 in BGR; got float64 \(4, 4, 3\)'):
        read_picture(np.zeros((4, 4, 3)))
