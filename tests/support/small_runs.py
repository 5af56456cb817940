"""Narrow models on small drawn images, trained by the real tools in processes of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from forking import run_forked
from helpers import MINI, TOOLS
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, init_default_scope

import mmsoft
from mmsoft.checkpoints import read_checkpoint
from mmsoft.datasets.miniature import write_world
from mmsoft.engine.config import without_pretrained
from mmsoft.engine.parts import pipelines

SIZE = (64, 96)
SHIPPED = dict(
    retinanet='retinanet_soft_pp_tiny_1x_coco',
    mask_rcnn='mask_rcnn_soft_pp_tiny_1x_coco',
    upernet='upernet_soft_pp_tiny_40k_cityscapes',
    classifier='soft_pp_tiny_300e_in1k',
)
WORLDS = dict(retinanet='coco', mask_rcnn='coco', upernet='cityscapes', classifier='imagenet')


# Narrow architectures of the InLine families that are not a pyramid of any widths.
DOUBLING = dict(dims=(16, 32, 64, 128), heads=(2, 4, 8, 16), depths=(1, 1, 2, 1))
PLAIN = dict(dims=(48,), heads=(3,), depths=(2,))


def narrow_model(model: ConfigDict) -> None:
    """Widths of MINI, or as the family of the backbone asks, and heads to match."""
    kind = model.backbone.type
    if model.get('mesa'):
        model.mesa = None  # a run alone has the average that it compares with
    model.backbone.arch = arch = DOUBLING if 'Swin' in kind else PLAIN if 'DeiT' in kind else MINI
    dims = list(arch['dims'])
    if len(dims) == 1:  # the levels of its pyramid
        dims = [dims[0] // part for part in (4, 2, 1, 1)]
    dims = [dims[index] for index in model.backbone.get('out_indices', range(4))]
    if 'neck' in model:
        model.neck.update(in_channels=dims, out_channels=32)
        if 'decode_head' in model:
            model.decode_head.update(in_channels=[32] * 4, channels=32)
        for head in (model.get('bbox_head'), model.get('rpn_head')):
            if head:
                head.update(in_channels=32, feat_channels=32)
        if 'roi_head' in model:
            for extractor in (model.roi_head.bbox_roi_extractor, model.roi_head.mask_roi_extractor):
                extractor.out_channels = 32
            model.roi_head.bbox_head.update(in_channels=32, fc_out_channels=32)
            model.roi_head.mask_head.update(in_channels=32, conv_out_channels=32)
    elif 'decode_head' in model:
        for head in (model.decode_head, model.auxiliary_head):
            head.channels = 32
        model.decode_head.in_channels, model.auxiliary_head.in_channels = dims, dims[2]


def small_config(method: str, folder: Path, train: int = 8, batch: int = 2, epochs: int = 3) -> Config:
    """A shipped config with a narrow model and a world of ``train`` images below ``folder``; ``dump`` writes it."""
    cfg = Config.fromfile(mmsoft.config_path(SHIPPED[method]))
    narrow_model(cfg.model)
    without_pretrained(cfg)
    cfg.model.backbone.drop_path_rate = 0.2
    root = write_world(WORLDS[method], folder, train=train, val=4, size=SIZE)
    cfg.data_root = f'{root}/'
    if 'decode_head' in cfg.model:
        cfg.model.data_preprocessor.size = SIZE
        steps = epochs * train // batch
        cfg.train_cfg.update(max_iters=steps, val_interval=steps)
        cfg.default_hooks.checkpoint.interval = train // batch
    elif method == 'classifier':
        cfg.train_cfg.update(max_epochs=epochs, val_interval=epochs)
        cfg.model.backbone.update(num_classes=6, img_size=64)
        cfg.custom_hooks[0].warmup_epochs = 0.5
    else:
        cfg.train_cfg.update(max_epochs=epochs, val_interval=epochs)
        cfg.val_evaluator.ann_file = cfg.test_evaluator.ann_file = f'{root}/annotations/instances_val2017.json'
    for name in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        cfg[name].update(num_workers=0, persistent_workers=False)
        cfg[name].dataset.data_root = f'{root}/'
        if method == 'classifier':
            cfg[name].dataset.transform.input_size = 64
        for pipeline in pipelines(cfg[name].dataset):
            for step in pipeline:
                if 'scale' in step:
                    step.scale = SIZE[::-1]
                if 'crop_size' in step:
                    step.crop_size = SIZE
    cfg.train_dataloader.batch_size = batch
    if 'filter_cfg' in cfg.train_dataloader.dataset:
        cfg.train_dataloader.dataset.filter_cfg.min_size = 8
    if cfg.param_scheduler:
        cfg.param_scheduler = [dict(type='ConstantLR', factor=1.0, by_epoch=False)]
    cfg.default_hooks.logger.interval = 1
    cfg.log_processor.window_size = 1
    return cfg


def small_checkpoint(method: str, folder: Path, **backbone: object) -> tuple[Config, Path]:
    """A config, and the path of a checkpoint that carries it; random heads are sure of nothing: every score counts."""
    cfg = small_config(method, folder, train=1)
    cfg.model.backbone.update(backbone)
    if 'rcnn' in cfg.model.get('test_cfg', {}):
        cfg.model.test_cfg.rcnn.update(score_thr=0.0, max_per_img=5)
    elif method == 'retinanet':
        cfg.model.test_cfg.update(score_thr=0.0, max_per_img=5)
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    state, path = MODELS.build(cfg.model).state_dict(), folder / 'epoch_1.pth'
    torch.save(dict(state_dict=state, meta=dict(cfg=cfg.pretty_text)), path)
    return cfg, path


def dump(cfg: Config, folder: Path, name: str = 'small') -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    Config(cfg.to_dict(), format_python_code=False).dump(folder / f'{name}.py')
    return folder / f'{name}.py'


def command(
    tool: str, *arguments: object, processes: int = 1, port: int = 29511, node: tuple[int, int] = (0, 1)
) -> list[str]:
    """``tools/<tool>.py`` with these arguments, through torchrun if there are several processes."""
    arguments = [str(argument) for argument in arguments]
    if processes == 1:
        return [sys.executable, str(TOOLS / f'{tool}.py'), *arguments]
    rank, nodes = node
    launcher = [
        *(sys.executable, '-m', 'torch.distributed.run', '--master_addr=127.0.0.1', f'--master_port={port}'),
        *(f'--nnodes={nodes}', f'--node_rank={rank}', f'--nproc_per_node={processes // nodes}'),
    ]
    return [*launcher, str(TOOLS / f'{tool}.py'), *arguments, '--launcher', 'pytorch']


# One thread: sums come out the same in every run, and processes do not compete.
ENVIRONMENT = dict(os.environ, OMP_NUM_THREADS='1')


def run(
    tool: str, *arguments: object, check: bool = True, processes: int = 1, port: int = 29511
) -> subprocess.CompletedProcess:
    """The tool in a process of its own, or in several as torchrun starts them."""
    _, *script = command(tool, *arguments)
    environments = [ENVIRONMENT]
    if processes > 1:
        script += ['--launcher', 'pytorch']
        shared = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), WORLD_SIZE=str(processes))
        environments = [dict(ENVIRONMENT, **shared, RANK=str(n), LOCAL_RANK=str(n)) for n in range(processes)]
    done = run_forked(*[script] * processes, environments=environments)
    assert not check or done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done


def losses(work_dir: Path) -> list[float]:
    """The loss of every iteration that the log holds."""
    (file,) = work_dir.glob('*/vis_data/scalars.json')
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    return [entry['loss'] for entry in entries if 'loss' in entry]


def children(number):
    return [int(child) for child in Path(f'/proc/{number}/task/{number}/children').read_text().split()]


def tensors(node: object, name: str = '') -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(node, torch.Tensor):
        yield name, node
    elif isinstance(node, (dict, list, tuple)):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from tensors(value, f'{name}.{key}')


def assert_same_state(first: Path, second: Path) -> None:
    """Weights, averages, statistics, optimizer and schedule."""
    first, second = read_checkpoint(first), read_checkpoint(second)
    for state in (first, second):
        state.pop('meta'), state.pop('message_hub')
    assert first.get('param_schedulers') == second.get('param_schedulers')
    assert first['optimizer']['param_groups'] == second['optimizer']['param_groups']
    first, second = dict(tensors(first)), dict(tensors(second))
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different, (len(different), len(first), different[:5])


def every_iteration(method: str, folder: Path, processes: int = 1) -> Config:
    """A short run that keeps a checkpoint of each iteration, with data workers."""
    cfg = small_config(method, folder, train=4 * processes if method != 'classifier' else 2 * processes, epochs=2)
    cfg.default_hooks.checkpoint.update(by_epoch=False, interval=1, max_keep_ckpts=-1)
    cfg.train_dataloader.num_workers = 1
    return cfg
