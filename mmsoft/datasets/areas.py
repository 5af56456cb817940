"""Areas of annotations in COCO's format that have none, as many tools write them."""

from collections.abc import Mapping
from typing import Any

from mmdet.datasets.api_wrappers import COCO

from .annotations import is_mask


def add_areas(content: Mapping[str, Any]) -> int:
    """Give annotations that have a box and no area that of their mask, or else of their box; how many they were."""
    images = {image['id']: image for image in content['images']}
    found = [entry for entry in content.get('annotations', ()) if 'bbox' in entry and 'area' not in entry]
    for entry in found:
        mask, image = entry.get('segmentation'), images.get(entry['image_id'])
        known = mask and image and is_mask(mask)
        entry['area'] = _mask_area(mask, image) if known else entry['bbox'][2] * entry['bbox'][3]
    return len(found)


def _mask_area(mask: Any, image: Mapping[str, Any]) -> int:
    """Pixels of polygons or runs."""
    from pycocotools import mask as coder

    if isinstance(mask, Mapping) and not isinstance(mask['counts'], list):
        return int(coder.area(mask))
    runs = coder.frPyObjects(mask, image['height'], image['width'])
    return int(coder.area(coder.merge(runs) if isinstance(runs, list) else runs))


def _index(coco: COCO) -> None:
    if coco.dataset:
        add_areas(coco.dataset)
    super(COCO, coco).createIndex()


def read_without_areas() -> None:
    """Let mmdet's data sets and metrics, in this process, read files without areas."""
    COCO.createIndex = _index
