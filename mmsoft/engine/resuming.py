"""What a checkpoint keeps besides MMEngine's state, so that a run goes on from any iteration as if uninterrupted."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dist import all_gather, all_reduce
from mmengine.hooks import EMAHook
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper
from torch import Tensor, nn

from mmsoft.checkpoints import CheckpointError

BUFFERS, GRADIENTS = 'buffers_of_ranks', 'gradients'  # keys of a checkpoint
EMA_HOOK = 'EMAHook'  # among the buffers: the average that MMEngine's hook keeps
KEPT, TIMED = 'keep_ckpt_ids', 'timed_checkpoints'  # in the message hub: numbers of files that will be removed


def unwrapped(model: nn.Module) -> nn.Module:
    return model.module if is_model_wrapper(model) else model


def average_of_mmengine(runner: Any) -> nn.Module | None:
    """What its EMAHook keeps."""
    return next((hook.ema_model.module for hook in runner.hooks if isinstance(hook, EMAHook)), None)


def between_updates(runner: Any) -> bool:
    """Whether gradients are being added up that the next update of the weights needs."""
    wrapper = runner.optim_wrapper
    return isinstance(wrapper, OptimWrapper) and not wrapper.should_update()


def collect(runner: Any, averages: dict[str, nn.Module]) -> dict[str, Any]:
    """For a checkpoint, by all processes at once: statistics of BatchNorm that differ between them, and gradients that
    are being added up.

    These are averaged over the processes, here and now: so it is done at the next update otherwise. A run whose
    checkpoints lie elsewhere rounds differently, which is why only checkpoints at places set by the config do so.
    ``averages`` are other models with statistics, by their keys in the checkpoint.
    """
    found = {}
    models = dict(state_dict=unwrapped(runner.model), **averages)
    if runner.world_size > 1:
        ranks = {key: _statistics_of_ranks(model, runner.world_size) for key, model in models.items()}
        found[BUFFERS] = {key: rows for key, rows in ranks.items() if rows}
    if between_updates(runner):
        found[GRADIENTS] = {}
        for name, parameter in models['state_dict'].named_parameters():
            if parameter.grad is not None:
                if runner.world_size > 1:
                    all_reduce(parameter.grad, op='mean')
                found[GRADIENTS][name] = parameter.grad.detach().cpu().clone()
    return found


def _statistics_of_ranks(model: nn.Module, world_size: int) -> list[dict[str, Tensor]]:
    """Each process's floating buffers by name; nothing if they are the same."""
    kept = model.state_dict().keys()
    buffers = {name: b for name, b in model.named_buffers() if b.is_floating_point() and name in kept}
    if not buffers:
        return []
    flat = torch.cat([buffer.detach().flatten().double() for buffer in buffers.values()])
    rows = [row.cpu() for row in all_gather(flat)]
    if all(torch.equal(row, rows[0]) for row in rows):
        return []
    sizes = [buffer.numel() for buffer in buffers.values()]
    return [
        {
            name: part.view(buffer.shape).to(buffer.dtype)
            for (name, buffer), part in zip(buffers.items(), row.split(sizes), strict=True)
        }
        for row in rows
    ]


def take_own_buffers(checkpoint: dict, rank: int, world_size: int, average: nn.Module | None) -> None:
    """Put this process's statistics where those of the first are; of another number of processes, the first's serve.

    Hooks have sorted the parts of the checkpoint already, and loaded the ``average`` of MMEngine's EMAHook.
    """
    for key, ranks in checkpoint.get(BUFFERS, {}).items():
        if len(ranks) == world_size and key == EMA_HOOK:
            if average is not None:
                average.load_state_dict(ranks[rank], strict=False)
        elif len(ranks) == world_size:
            checkpoint[key].update(ranks[rank])  # a hook may hold this dict


def take_gradients(checkpoint: dict, model: nn.Module) -> None:
    gradients = checkpoint.get(GRADIENTS, {})
    for name, parameter in unwrapped(model).named_parameters():
        if name in gradients:
            parameter.grad = gradients[name].to(parameter)


def own_files_only(info: dict[str, Any], source: str | Path, folders: Iterable[str | Path]) -> None:
    """Forget what a checkpoint says of files to remove, unless both it and they are in the hooks' ``folders``."""
    folders = [Path(folder).resolve() for folder in folders]
    own = Path(source).resolve().parent in folders
    for key, value in list(info.items()):
        if key in (KEPT, TIMED):
            if not (isinstance(value, list) and all(type(number) is int for number in value)):
                raise CheckpointError(f'its {key} must be a list of whole numbers; got {value!r}')
            if not own:
                del info[key]
        elif str(key).startswith('best_ckpt'):
            name = Path(str(value)).name  # without its folder: a run may have been moved as a whole
            files = [folder / name for folder in folders if own and re.fullmatch(r'best_.+\.pth', name)]
            best = next((file for file in files if file.is_file() and not file.is_symlink()), None)
            if best:
                info[key] = str(best)
            else:
                del info[key]
        elif str(key).startswith('best_score') and not isinstance(value, (int, float, np.number)):
            raise CheckpointError(f'its {key} must be a number; got {value!r}')
