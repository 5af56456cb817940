"""What is made linear, and the configs that are written for it: of a classifier without one, of a stage's run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch import Tensor, nn

from mmsoft.engine.config import load_config
from mmsoft.engine.parts import LOADERS

from .copying import Copy
from .pictures import own_places, picture_steps
from .reading import Reading, TeacherError

# A shipped config of each family's classifier: data, schedule and metrics for what comes without a config.
BASES = {
    'InLine-Swin': 'inline_swin_tiny_300e_in1k',
    'InLine-DeiT': 'inline_deit_tiny_300e_in1k',
    'InLine-PVT': 'inline_pvt_tiny_300e_in1k',
}
TRANSFORM = ('mean', 'std', 'crop_pct', 'interpolation')
IMAGE = 32  # pixels of a side of the authors' Swin for each token of a window's: 224 of 7, 384 of 12
LARGE = 224  # pixels, above which their test crops nothing


@dataclass
class Source:
    """A teacher.

    Args:
        cfg: Its config; None where there is none, until the copy shows which family's to take.
        module: What has the attentions, with its weights.
        spec: The config of that module.
        rest: Weights around it: neck and heads.
        meta: What its checkpoint says.
        transform: How a library's model wants its pictures.
        parts: Pictures of each part of a folder of one's own.
        changes: Of the config that it gets where it has none.
        classes: Of its head, where that has no place in the linear model.
    """

    cfg: Config | None
    module: nn.Module
    spec: dict[str, Any]
    rest: dict[str, Tensor]
    meta: Mapping[str, Any]
    transform: Mapping[str, Any]
    parts: Mapping[str, list[str]] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    classes: int | None = None

    def places(self, cfg: Config, part: str = 'train') -> list[str]:
        """Folders and pictures of a part: of a folder of one's own, or else of the config."""
        return self.parts.get(part, []) if self.parts else own_places(cfg, part)


@dataclass
class Linear:
    """The linear model: its config, with all weights; what is known of the copy."""

    cfg: Config
    weights: dict[str, Tensor]
    copy: Copy
    reading: Reading
    backbone: dict[str, Any]
    new_head: bool = False  # of the config's classifier; the stages teach the backbone alone

    @property
    def part(self) -> dict[str, Tensor]:
        """Weights of what the stages teach."""
        return self.part_of(self.weights)

    def part_of(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {k.removeprefix('backbone.'): v for k, v in weights.items() if k.startswith('backbone.')}
        return {name: value for name, value in found.items() if not (self.new_head and name.startswith('head.'))}

    def with_part(self, part: Mapping[str, Tensor]) -> 'Linear':
        weights = {**self.weights, **{f'backbone.{name}': value for name, value in part.items()}}
        return replace(self, weights=weights)


def classifier_config(reading: Reading, transform: Mapping[str, Any], changes: Mapping[str, Any]) -> Config:
    """The family's own, with the teacher's way to prepare pictures, and ``changes`` of one's own."""
    wrong = next((name for name in changes if name.partition('.')[0] == 'model'), None)
    if wrong:
        raise TeacherError(f"--cfg-options {wrong}: the model is the teacher's, which came without a config")
    cfg = load_config(BASES[reading.family.title], changes)
    window = reading.options.get('window_size')
    own_size = IMAGE * window if window else reading.options['img_size']
    size = transform.get('input_size', own_size)
    size = size if isinstance(size, int) else size[0]
    own = dict(crop_pct=1.0) if size > LARGE else {}  # as the authors of Swin test at 384
    own |= {key: transform[key] for key in TRANSFORM[2:] if key in transform}
    for name in LOADERS:
        options = cfg[name].dataset.transform
        options.update({key: transform[key] for key in ('mean', 'std') if key in transform}, input_size=size)
        if not options.get('is_training'):
            options.update(own)
    cfg.merge_from_dict(dict(changes))  # again: they come before the teacher's way
    return cfg


def teaching_config(
    stage: str,
    source: Source,
    linear: Linear,
    out: Path,
    places: Sequence[str],
    steps: int,
    batch_size: int,
    lr: float,
    workers: int = 2,
) -> Config:
    """The run of a stage: what ``train`` takes."""
    base = linear.cfg
    warmup = steps // 20 if steps >= 40 else 0  # LinearLR of one step never ends
    cosine = dict(type='CosineAnnealingLR', T_max=max(steps - warmup, 1), eta_min=lr / 100)
    return Config(
        dict(
            default_scope=base.get('default_scope', 'mmengine'),
            custom_imports=base.custom_imports,
            model=dict(
                type='mmsoft.Distillation',
                stage=stage,
                teacher=source.spec,
                student=_pupil(linear.backbone),
                teacher_weights=str(out / 'teacher.pth'),
                student_weights=str(out / f'before_{stage}.pth'),
                blocks=linear.copy.attentions,
                data_preprocessor=dict(type='mmsoft.PicturesOnly', inner=base.model.get('data_preprocessor')),
            ),
            train_dataloader=dict(
                batch_size=batch_size,
                num_workers=workers,
                persistent_workers=workers > 0,
                sampler=dict(type='InfiniteSampler', shuffle=True),
                dataset=dict(type='mmsoft.Pictures', data_root=list(places), pipeline=picture_steps(base)),
            ),
            train_cfg=dict(type='IterBasedTrainLoop', max_iters=steps, val_interval=steps + 1),
            optim_wrapper=dict(
                type='OptimWrapper',
                optimizer=dict(type='AdamW', lr=lr, weight_decay=0.0),
                clip_grad=dict(max_norm=5.0),
            ),
            param_scheduler=[
                *[dict(type='LinearLR', start_factor=0.05, by_epoch=False, begin=0, end=warmup)] * bool(warmup),
                dict(**cosine, by_epoch=False, begin=warmup, end=steps),
            ],
            default_hooks=dict(
                timer=dict(type='IterTimerHook'),
                logger=dict(type='LoggerHook', interval=max(1, min(50, steps // 10)), log_metric_by_epoch=False),
                param_scheduler=dict(type='ParamSchedulerHook'),
                checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=max(1, steps // 10), max_keep_ckpts=1),
                sampler_seed=dict(type='DistSamplerSeedHook'),
            ),
            env_cfg=base.get('env_cfg', dict(dist_cfg=dict(backend='nccl'))),
            custom_hooks=[dict(type='mmsoft.ShowProgress', title=stage)],
            # MMEngine keeps one visualizer of a name in a process, with the folder that it has first
            visualizer=dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')], name=f'{stage} {out}'),
            experiment_name=stage,
            log_processor=dict(type='LogProcessor', window_size=20, by_epoch=False),
            log_level='INFO',
            load_from=None,
            resume=False,
        )
    )


def _pupil(backbone: Mapping[str, Any]) -> dict[str, Any]:
    """The linear model as the stages teach it: nothing falls out, and all of it learns, for all of it has changed."""
    frozen = dict(frozen_stages=-1) if 'frozen_stages' in backbone else {}
    return dict(backbone, drop_path_rate=0.0, **frozen)
