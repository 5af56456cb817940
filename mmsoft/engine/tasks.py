"""One record a task: how it is recognised, demonstrated, drawn, checked, predicted and counted. Nothing else guesses.

Another task is a record here, in TASKS before those that would take its models as well, and a base config.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import TRANSFORMS
from torch import Tensor, nn

from mmsoft.datasets.class_folders import ClassSample, make_transform
from mmsoft.datasets.layout import class_count
from mmsoft.datasets.reading import check_sides
from mmsoft.visualization import draw_class, draw_instances, draw_label_map

from .heads import check_heads, head_counts
from .parts import kind_of, pipelines, walk_dicts
from .writers import ClassWriter, DetectionWriter, LabelMapWriter, SegmentWriter, Writer

Transform = Callable[[dict], Any]


@dataclass
class Task:
    """What our tools need to know of a task.

    Args:
        name: What a model predicts, in a word.
        owns: Whether a model of this config has this task.
        heads: Modules that can tell ``num_classes``; the first that does is asked, then any outside of the backbone.
        demo_batch: Images of a batch of ``--demo``, of all processes together.
        demo_epochs: Its length.
        draw: Of an image (H, W, 3), a sample and the data set's meta, a picture; see visualization.draw_instances.
        writer: Keeps predictions in files.
        steps: Of a config, what loads a picture and what prepares it for the model.
        input_shape: Of a config, (height, width) of what the model sees in testing.
        run: Runs a model on images (B, 3, H, W) without what depends on values; what was assumed in their place.
        check: Raises where the data of a mode (train, val, test) does not fit the model.
        label_count: Of a config, the classes that labels of pixels are checked against; None checks none.
        demo_val_batch: Images of a batch in validation of ``--demo``.
        dump: The metric that saves all predictions.
    """

    name: str
    owns: Callable[[Mapping], bool]
    heads: tuple[str, ...]
    demo_batch: int
    demo_epochs: int
    draw: Callable[..., np.ndarray]
    writer: type[Writer]
    steps: Callable[[Config], tuple[Transform, Transform]]
    input_shape: Callable[[Config], tuple[int, int]]
    run: Callable[[nn.Module, Tensor], list[str]]
    check: Callable[[Config, str], None] = lambda cfg, mode: None
    label_count: Callable[[Config], int | None] = lambda cfg: None
    demo_val_batch: int = 1
    dump: str = 'DumpResults'

    def num_classes(self, model: nn.Module) -> int:
        modules = dict(model.named_modules())
        # also within the student of a semi-supervised model, whose RPN tells 1
        heads = [modules[name] for head in self.heads for name in modules if f'.{name}'.endswith(f'.{head}')]
        others = (module for name, module in modules.items() if 'backbone' not in name.split('.'))
        for head in (*heads, *others):
            count = getattr(head[-1] if isinstance(head, nn.ModuleList) and len(head) else head, 'num_classes', None)
            if isinstance(count, int):
                return count
        raise ValueError(
            f'{type(model).__name__} has none of the heads {", ".join(self.heads)}, for {self.name}, '
            'and no other part that tells num_classes'
        )


def task_of(cfg: Config) -> Task:
    """The task of the config's model."""
    return next(task for task in TASKS if task.owns(cfg.model))


def class_steps(cfg: Config) -> tuple[Transform, Transform]:
    """As in testing, where nobody turns pictures by their EXIF."""
    run = make_transform(cfg.test_dataloader.dataset.transform)

    def prepare(data: dict) -> dict:
        """From a BGR image (H, W, 3) to what a classifier takes."""
        from PIL import Image

        check_sides(*data['img_shape'])
        picture = Image.fromarray(np.ascontiguousarray(data['img'][..., ::-1]))
        return dict(inputs=run(picture), data_samples=ClassSample(metainfo=dict(img_path=data['img_path'])))

    return TRANSFORMS.build(dict(type='LoadImageFromFile', color_type='color_ignore_orientation')), prepare


def pipeline_steps(cfg: Config) -> tuple[Transform, Transform]:
    """The test pipeline without annotations."""
    steps = next(pipelines(cfg.test_dataloader.dataset))
    if kind_of(steps[0]) == 'TransformBroadcaster':
        raise ValueError(f'{cfg.model.type} takes films, whose frames belong together, and no pictures one by one')
    first, *others = (step for step in steps if not re.fullmatch('Load.*Annotations', kind_of(step)))
    return TRANSFORMS.build(first), Compose(others)


def class_shape(cfg: Config) -> tuple[int, int]:
    return (cfg.test_dataloader.dataset.transform.input_size,) * 2


def pipeline_shape(cfg: Config) -> tuple[int, int]:
    """To which the test pipeline resizes.

    Where its long side is over twice the short one, as ADE20K's 2048 x 512, it is a bound that images do
    not reach: then the short side squared.
    """
    for step in walk_dicts(next(pipelines(cfg.test_dataloader.dataset))):
        if 'scale' in step:
            short, long = sorted(step.scale)
            return (short, short) if long > 2 * short else tuple(step.scale[::-1])
    raise ValueError('the test pipeline has no step with a scale: give --shape HEIGHT WIDTH')


def run_whole(model: nn.Module, images: Tensor) -> list[str]:
    model(images, mode='tensor')
    return []


def run_segmentor(model: nn.Module, images: Tensor) -> list[str]:
    """As in testing: heads of points and of queries have no other way."""
    model.encode_decode(images, [_shapes_of(images)])
    return []


def run_detector(model: nn.Module, images: Tensor) -> list[str]:
    """With as many proposals as the config permits, and the head of stuff where there is one."""
    samples = [_sample_of(images)]
    if not getattr(model, 'with_roi_head', False):
        if getattr(model, 'with_mask', False) and model.with_bbox:  # mmdet's other way asks for a loss
            model(images, samples, mode='predict')
            return ['masks are of as many objects as the config permits']
        model(images, samples, mode='tensor')
        return []
    features = model.extract_feat(images)
    for extractor in (m for m in model.roi_head.modules() if hasattr(m, 'roi_layers')):
        _give_zeros(extractor)
    found = _proposals(model, features, samples)
    if _are_learned(model):  # mmdet's other way asks for a loss
        model.roi_head.predict(features, found, samples)
    else:
        model.roi_head.forward(features, found, samples)
    if getattr(model, 'with_semantic_head', False):
        model.semantic_head(features)
    proposals, masks = len(found[0].bboxes), ''
    if model.roi_head.with_mask:  # of later stages all; without predictions, mmdet gives one head the first 100
        several = isinstance(model.roi_head.mask_head, nn.ModuleList)
        masks = f', and {proposals if several else min(100, proposals)} masks'
    return [f'{proposals} proposals, the most that the config permits{masks}']


def _shapes_of(images: Tensor) -> dict[str, tuple[int, ...]]:
    shape = tuple(images.shape[-2:])
    return dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape'), shape)


def _sample_of(images: Tensor) -> Any:
    """What heads are told of a picture that was not resized."""
    from mmdet.structures import DetDataSample

    return DetDataSample(metainfo=dict(_shapes_of(images), scale_factor=(1.0, 1.0), img_id=0))


def _proposals(model: nn.Module, features: Sequence[Tensor], samples: Sequence[Any]) -> list[Any]:
    """Learned ones as they are; of an RPN, which runs, as many zeros as it may give."""
    from mmengine.structures import InstanceData

    if not hasattr(model, 'rpn_head'):
        raise ValueError(f'{type(model).__name__} takes proposals of another model, and nobody says how many')
    if _are_learned(model):
        return model.rpn_head.predict(features, samples)
    if hasattr(model.rpn_head, 'prior_generator'):
        model.rpn_head(features)
    else:  # of several stages, each of which reads what the one before found
        model.rpn_head.predict(features, samples)
    return [InstanceData(bboxes=features[0].new_zeros(model.test_cfg.rpn.max_per_img, 4))]


def _are_learned(model: nn.Module) -> bool:
    return hasattr(model.rpn_head, 'num_proposals')


def _give_zeros(extractor: nn.Module) -> None:
    """Features of regions (n, C, h, w) without the operator, which needs values."""
    size = extractor.roi_layers[0].output_size
    extractor.forward = lambda features, rois, *_, **__: features[0].new_zeros(len(rois), extractor.out_channels, *size)


def has_regions(model: Mapping) -> bool:
    """Whether a detector pools features of regions, which mmcv's operators do not do in bfloat16."""
    return 'roi_head' in model


def check_class_count(cfg: Config, mode: str) -> None:
    """Raise unless a classifier's head is as wide as its data has classes."""
    found, own = class_count(cfg[f'{mode}_dataloader'].dataset), cfg.model.backbone.get('num_classes', 1000)
    if found is not None and found != own:
        raise ValueError(
            f'the {mode} data has {found} classes, but the model {own}: set '
            f'--cfg-options model.backbone.num_classes={found}'
        )


def label_count(cfg: Config) -> int | None:
    """Of the last head, also of one that is nested; all have the same, see check_heads."""
    return next(reversed([count for _, count in head_counts(cfg.model.decode_head)]), None)


CLASSIFICATION = Task(
    'classes',
    owns=lambda model: kind_of(model) == 'ImageClassifier',
    heads=('backbone',),
    demo_batch=32,
    demo_epochs=8,
    draw=draw_class,
    writer=ClassWriter,
    steps=class_steps,
    input_shape=class_shape,
    run=run_whole,
    check=check_class_count,
    demo_val_batch=32,
)
SEMANTIC_SEGMENTATION = Task(
    'labels',
    owns=lambda model: 'decode_head' in model,
    heads=('decode_head',),
    demo_batch=4,
    demo_epochs=3,
    draw=draw_label_map,
    writer=LabelMapWriter,
    steps=pipeline_steps,
    input_shape=pipeline_shape,
    run=run_segmentor,
    check=check_heads,
    label_count=label_count,
)
DETECTION = Task(
    'boxes',
    owns=lambda model: True,  # all other models are detectors
    heads=('bbox_head', 'roi_head.bbox_head', 'mask_head'),
    demo_batch=4,
    demo_epochs=3,
    draw=draw_instances,
    writer=DetectionWriter,
    steps=pipeline_steps,
    input_shape=pipeline_shape,
    run=run_detector,
    check=check_heads,
    dump='mmdet.DumpDetResults',
)
INSTANCE_SEGMENTATION = replace(
    DETECTION, name='masks', owns=lambda model: 'mask_head' in {**model, **(model.get('roi_head') or {})}
)
PANOPTIC_SEGMENTATION = replace(
    DETECTION,
    name='segments',
    owns=lambda model: 'panoptic_head' in model or 'panoptic_fusion_head' in model,
    heads=('panoptic_fusion_head', 'panoptic_head'),  # of things and stuff; the box head counts things alone
    writer=SegmentWriter,
)
TASKS = (CLASSIFICATION, SEMANTIC_SEGMENTATION, PANOPTIC_SEGMENTATION, INSTANCE_SEGMENTATION, DETECTION)
