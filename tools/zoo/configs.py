"""Which config stands for each method folder of mmdet's and mmseg's zoos, and how it is made to run here."""

import importlib
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from mmengine.config import Config

SMALL = re.compile(r'(^|[_-])(r18|r50|tiny|t|b0|s|s12)($|[_-])')
# Folders whose first small config stands badly for the method.
OVERRIDES: dict[str, dict[str, str]] = {
    'mmdet': {
        'cascade_rpn': 'cascade-rpn_faster-rcnn_r50-caffe_fpn_1x_coco',  # the first has proposals from a file
        'detectors': 'detectors_cascade-rcnn_r50_1x_coco',  # the first is without switchable convolutions
        'faster_rcnn': 'faster-rcnn_r50_fpn_1x_coco',  # the first is without a pyramid
        'mask2former': 'mask2former_r50_8xb2-lsj-50e_coco-panoptic',  # the first has a Swin-S
        'reppoints': 'reppoints-moment_r50_fpn_1x_coco',  # the first takes points from a grid
    },
    'mmseg': {},
}
# More configs of a folder, for operators that its first one does not call.
FURTHER: dict[str, list[str]] = {
    'mmdet': [
        'carafe/mask-rcnn_r50_fpn-carafe_1x_coco',
        'dcn/faster-rcnn_r50_fpn_dpool_1x_coco',
        'dcnv2/faster-rcnn_r50_fpn_mdpool_1x_coco',
        'faster_rcnn/faster-rcnn_r50_fpn_soft-nms_1x_coco',
        'guided_anchoring/ga-retinanet_r50-caffe_fpn_1x_coco',
        'rtmdet/rtmdet-ins_tiny_8xb32-300e_coco',
        'sort/sort_faster-rcnn_r50_fpn_8xb2-4e_mot17halftrain_test-mot17halfval',
    ],
    'mmseg': [],
}
# Smaller pictures leave these too little.
SIDES = {'ssd': 300, 'centripetalnet': 256, 'cornernet': 256, 'dino': 256, 'ddod': 384, 'mobilenet_v3': 448}
SIDE = 128
PROPOSALS = 100
# Random weights score low; these would leave nothing for the operators.
THRESHOLDS = ('score_thr', 'obj_score_thr', 'init_track_thr', 'init_score_thr', 'high', 'low')
CLIP_ONLY = ('san/',)  # whose init_weights knows CLIP's weights alone


class Method(NamedTuple):
    """A method folder, or one of its further configs, and the config that stands for it."""

    library: str
    name: str
    config: str

    @property
    def key(self) -> str:
        return f'{self.library}/{self.name}'


def zoo_folder(library: str) -> Path:
    return Path(importlib.import_module(library).__file__).parent / '.mim' / 'configs'


def methods(library: str, names: Collection[str] | None) -> list[Method]:
    """The folders and further configs of these names, or all there are; a folder of mere bases has no config."""
    folders = sorted(path.name for path in zoo_folder(library).iterdir() if path.is_dir() and path.name != '_base_')
    wanted = [name for name in folders if names is None or name in names]
    further = [name for name in FURTHER[library] if names is None or name in names]
    return [Method(library, name, choose(library, name)) for name in wanted] + [
        Method(library, name, f'{name}.py') for name in further
    ]


def choose(library: str, folder: str) -> str:
    """The override, or the first config with a small backbone in the order of the metafile, or else the first."""
    if folder in OVERRIDES[library]:
        return f'{folder}/{OVERRIDES[library][folder]}.py'
    configs = sorted(_in_order(zoo_folder(library), folder), key=lambda config: not SMALL.search(Path(config).stem))
    return next((config for config in configs if _has_model(library, config)), '')


def _in_order(zoo: Path, folder: str) -> list[str]:
    """A folder's configs as its metafile lists them, then those that it does not list, by name."""
    listed: list[str] = []
    for metafile in sorted(zoo.glob(f'{folder}/metafile.y*ml')):
        content = yaml.safe_load(metafile.read_text())
        models = content if isinstance(content, list) else content.get('Models', ())
        listed += [model['Config'].removeprefix('configs/') for model in models if 'Config' in model]
    files = sorted(path.relative_to(zoo).as_posix() for path in (zoo / folder).rglob('*.py'))
    return [config for config in dict.fromkeys(listed) if config in files] + [f for f in files if f not in listed]


def _has_model(library: str, config: str) -> bool:
    """Whether it is more than a base; a config that cannot be read here counts, so that its error is shown."""
    try:
        return 'model' in Config.fromfile(zoo_folder(library) / config, import_custom_modules=False)
    except Exception:
        return True


def load(library: str, config: str) -> Config:
    """The config without weights to download, with BN instead of SyncBN, few proposals and no score thresholds."""
    loaded = Config.fromfile(zoo_folder(library) / config)
    loaded.load_from = None
    _prepare(loaded.model, library, side(config))
    return loaded


def side(config: str) -> int:
    """Of the square pictures that it is given."""
    return next((pixels for start, pixels in SIDES.items() if config.startswith(start)), SIDE)


def _prepare(node: Any, library: str, pixels: int) -> None:
    """Prepare every dict in a tree of dicts and lists."""
    if isinstance(node, list | tuple):
        for child in node:
            _prepare(child, library, pixels)
    if not isinstance(node, dict):
        return
    if node.get('type') in ('SyncBN', 'MMSyncBN'):
        node['type'] = 'BN'
    _forget_weights(node, library)
    _shrink(node, pixels)
    for key in THRESHOLDS:
        if isinstance(node.get(key), float):
            node[key] = 0.0
    for child in node.values():
        _prepare(child, library, pixels)


def _forget_weights(node: dict, library: str) -> None:
    if isinstance(node.get('pretrained'), str | bool):
        node['pretrained'] = False if node['pretrained'] is True else None
    init = node.get('init_cfg')
    if isinstance(init, dict) and 'checkpoint' in init:
        node['init_cfg'] = None
    for key in ('checkpoint', 'teacher_ckpt'):
        if key in node:
            node[key] = None
    if isinstance(node.get('teacher_config'), str):
        node['teacher_config'] = dict(model=load(library, node['teacher_config'].removeprefix('configs/')).model)


def _shrink(node: dict, pixels: int) -> None:
    for key in ('rpn', 'rpn_proposal'):
        limits = node.get(key)
        if isinstance(limits, dict):
            limits.update({name: min(limits[name], PROPOSALS) for name in ('nms_pre', 'max_per_img') if name in limits})
    if node.get('type') in ('BatchFixedSizePad', 'SegDataPreProcessor') and node.get('size'):
        node['size'] = (pixels, pixels)
    if node.get('type') == 'TrackDataPreprocessor' and not node.get('use_det_processor'):
        node['batch_augments'] = None  # which refuses films
    if isinstance(node.get('templates'), str):
        node['templates'] = ['a photo of a {}.']  # one sentence for a class instead of many
    if 'img_size' in node and 'patch_size' in node:
        node['img_size'] = (pixels, pixels)
