"""The README's picture: what a detector of the demo finds in a drawn scene, and what a point on an object attends to.

``python tools/train.py configs/mask_rcnn_soft_pp_tiny_1x_coco.py --demo``, then, with its checkpoint,
``python tools/studies/first_picture.py CHECKPOINT docs/pictures/first.png``.
"""

import argparse
import tempfile
from pathlib import Path

import cv2
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from mmsoft import Predictor
from mmsoft.datasets.miniature import scenes
from mmsoft.engine.visualize import open_viewer
from mmsoft.visualization import attention_maps
from mmsoft.visualization.figures import short_name

SIZE = (128, 160)  # of the demo's pictures
ENLARGED = 3


def first_picture(checkpoint: str, out: Path, seed: int, stages: list[int]) -> None:
    """The detections in a scene, and the maps of the centre of the surest one in some stages."""
    (scene,) = scenes(1, SIZE, (seed,))
    large = cv2.resize(scene.image, None, fx=ENLARGED, fy=ENLARGED, interpolation=cv2.INTER_CUBIC)
    found = Predictor(checkpoint)(large)
    height, width = large.shape[:2]
    if found.boxes is None or not len(found.boxes):
        raise SystemExit(f'error: {checkpoint!r} finds nothing in the scene of seed {seed}: give another --seed')
    left, top, right, bottom = found.boxes[0]
    query = (float(left + right) / 2 / width, float(top + bottom) / 2 / height)
    viewer = open_viewer(None, checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        cv2.imwrite(f'{folder}/scene.png', large)
        seen = viewer.see(f'{folder}/scene.png')
    maps = attention_maps(viewer.model, seen.image, [query], stages, shown=seen.picture.shape[:2])

    figure = Figure(figsize=(3.1 * (1 + len(maps)), 2.7), layout='constrained')
    first, *others = figure.subplots(1, 1 + len(maps))
    first.imshow(found.draw(0.5))
    first.set_title('what Mask R-CNN finds', fontsize=9)
    shown_part = np.array(seen.picture.shape[:2]) / seen.sides  # the rest is padding
    for panel, of_stage in zip(others, maps, strict=True):
        panel.imshow(large[..., ::-1].mean(-1), cmap='gray')
        rows, columns = (size / part for size, part in zip((height, width), shown_part, strict=True))
        panel.imshow(of_stage.head(), cmap='turbo', alpha=0.55, extent=(0, columns, rows, 0))
        panel.plot(query[0] * width, query[1] * height, '+', color='red', markersize=12, markeredgewidth=2)
        panel.scatter(*(of_stage.landmarks * (width, height)).T, s=5, c='white', edgecolors='black', linewidths=0.4)
        panel.set(xlim=(0, width), ylim=(height, 0), title='')
        panel.set_title(f'where the red cross looks: {short_name(of_stage.layer)}', fontsize=9)
    for panel in (first, *others):
        panel.set_axis_off()
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=100)
    with Image.open(out) as picture:  # fewer colours: less to download
        picture.convert('RGB').quantize(192).save(out, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('checkpoint', help='of a detector that --demo has trained')
    parser.add_argument('out', type=Path, metavar='FILE.png')
    parser.add_argument('--seed', type=int, default=7, help='of the scene')
    parser.add_argument('--stages', type=int, nargs='+', default=[2, 3])
    args = parser.parse_args()
    first_picture(args.checkpoint, args.out, args.seed, args.stages)


if __name__ == '__main__':
    main()
