"""Annotations without areas are trained on and tested as those with them."""

import json
from pathlib import Path

from mmengine.registry import DATASETS, init_default_scope
from small_runs import small_config

from mmsoft.engine.config import check_data


def annotations(cfg):
    """What mmdet makes of them, and the areas that its metric reads."""
    data = DATASETS.build(dict(cfg.val_dataloader.dataset, pipeline=[]))
    return [info['instances'] for info in data.load_data_list()]


def test_a_json_without_areas_is_read(tmp_path):
    from mmdet.datasets.api_wrappers import COCO

    cfg = small_config('retinanet', tmp_path, train=1)
    init_default_scope('mmdet')
    file = Path(cfg.val_evaluator.ann_file)
    content = json.loads(file.read_text())
    whole, areas = annotations(cfg), {entry['id']: entry.pop('area') for entry in content['annotations']}
    boxed = content['annotations'][0]
    del boxed['segmentation']
    areas[boxed['id']] = boxed['bbox'][2] * boxed['bbox'][3]
    file.write_text(json.dumps(content))
    remark, *_ = check_data(cfg, 'val')
    assert remark == f'{file}: {len(areas)} annotations have no area: computed from their masks or boxes'
    found = annotations(cfg)
    for instance in (found[0][0], whole[0][0]):
        instance.pop('mask', None)
    assert found == whole
    assert {number: entry['area'] for number, entry in COCO(str(file)).anns.items()} == areas
