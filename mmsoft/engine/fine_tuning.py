"""Training that starts from the weights of another data set: all that does not depend on its classes is kept."""

import copy
from collections.abc import Mapping

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmsoft.datasets.layout import class_lists
from mmsoft.models import Checkpoint
from mmsoft.weights.meta import dataset_meta

from .config import without_pretrained
from .heads import head_counts, set_counts
from .parts import kind_of


def fresh_layers(cfg: Config, checkpoint: str, trust: bool = False) -> set[str]:
    """Tensors of a detector or segmentor that do not start from this checkpoint: those of classes that differ.

    Classes differ in number, or in their names where the checkpoint tells them.
    """
    opened = Checkpoint.open(checkpoint, trust)
    if len({name.startswith('backbone.') for name in opened.weights}) < 2:
        raise ValueError(
            f'--fine-tune starts a {kind_of(cfg.model)} from the checkpoint of one; {checkpoint} holds a backbone or a '
            f'classifier: start from that with --cfg-options model.backbone.init_cfg.checkpoint={checkpoint}'
        )
    own, layers = shapes_of(cfg), class_layers(cfg)
    same = {name for name in layers if name in opened.weights and opened.weights[name].shape == own[name]}
    return layers - same if _same_names(cfg, opened.meta) else layers


def class_layers(cfg: Config) -> set[str]:
    """Tensors of a model that depend on its classes: those that another shape is of with one class more."""
    own, more = shapes_of(cfg), copy.deepcopy(cfg)
    set_counts(more, {name: count + 1 for name, count in head_counts(cfg.model)})
    return {name for name, shape in shapes_of(more).items() if own.get(name) != shape}


def shapes_of(cfg: Config) -> dict[str, torch.Size]:
    """Shapes of a model's weights by name."""
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    cfg = Config(dict(model=copy.deepcopy(cfg._cfg_dict['model'])))
    without_pretrained(cfg)
    return {name: value.shape for name, value in MODELS.build(cfg.model).state_dict().items()}


def _same_names(cfg: Config, meta: Mapping) -> bool:
    """Whether the classes of a checkpoint are those of the training data; where it tells none, they may be."""
    known = dataset_meta(meta).get('classes')
    return not known or all(
        tuple(known) == tuple(own['classes']) for _, own in class_lists(cfg.train_dataloader.dataset)
    )
