"""Checkpoints of narrow models that find much, for exports."""

import torch
from mmengine.registry import MODELS, init_default_scope
from small_runs import small_config


def spread(model):
    """Random heads that find many boxes of many classes."""
    for name, part in model.named_modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_var.uniform_(0.5, 2)
        if name.endswith(('retina_cls', 'fc_cls', 'rpn_cls')):
            torch.nn.init.normal_(part.weight, std=0.2)
            torch.nn.init.zeros_(part.bias)
        if name.endswith(('retina_reg', 'rpn_reg', 'fc_reg')):
            torch.nn.init.normal_(part.weight, std=0.05)


def checkpoint_of(method, folder):
    """A narrow model at random."""
    cfg = small_config(method, folder)
    if method in ('retinanet', 'mask_rcnn', 'upernet'):  # the classifier's graph has all of Newton's steps
        cfg.model.backbone.newton_iters = 4
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    model.init_weights()
    spread(model)
    torch.save(dict(state_dict=model.state_dict(), meta=dict(cfg=cfg.pretty_text)), folder / 'model.pth')
    return str(folder / 'model.pth')
