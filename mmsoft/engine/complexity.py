"""Multiply-adds, counted in full as the operators run."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mmsoft.ops import kernels

if TYPE_CHECKING:
    from mmengine.config import Config

NOT_COUNTED = 'norms, activations, resizing, sampling, RoIAlign and NMS'


def _attention_flops(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *_, **__) -> int:
    """Fused softmax attention: query (B, h, N, d), key (B, h, M, d), value (B, h, M, e)."""
    *batch, queries, width = query
    return 2 * torch.Size(batch).numel() * queries * key[-2] * (width + value[-1])


@contextlib.contextmanager
def _counter() -> Iterator[FlopCounterMode]:
    """It sits below autograd and sees every product, Newton's steps and fused attention included; not into kernels."""
    mapping = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}
    with kernels('no-triton'), FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        yield counter


def count_call(call: Callable[[], Any]) -> int:
    """Multiply-adds of whatever ``call`` runs."""
    with _counter() as counter:
        call()
    return counter.get_total_flops() // 2


def count_macs(model: nn.Module, *shape: int) -> int:
    """Multiply-adds of one forward pass on a zero input of this shape; a counter of modules would miss many."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return count_call(lambda: model(torch.zeros(*shape, device=device)))
    finally:
        model.train(training)


class Part(NamedTuple):
    """A part of a detector or segmentor; ``macs`` is None where it does not run in testing."""

    name: str
    parameters: int
    macs: int | None


def count_parts(cfg: 'Config', shape: tuple[int, int] | None = None) -> tuple[list[Part], list[str]]:
    """Parts of the config's model, ``total`` last, at one image of (height, width), and remarks.

    The names of parts within another part are indented; the others add up to the total, but for products that run
    between them. Neither data nor weights are needed. Shapes are enough, unless a part asks for values: then weights of
    zero give them, with which boxes stay where they are proposed and every score counts.
    """
    from mmengine.registry import init_default_scope

    from .config import without_pretrained
    from .tasks import task_of

    init_default_scope(cfg.get('default_scope', 'mmengine'))
    without_pretrained(cfg)
    height, width = shape or task_of(cfg).input_shape(cfg)
    if min(height, width) < 1:
        raise ValueError(f'--shape takes a height and a width of 1 or more; got {height} {width}')
    try:
        return _count_on('meta', cfg, height, width)
    except Exception:  # each operator that has no values fails in a way of its own
        return _count_on('cpu', cfg, height, width)


def _count_on(device: str, cfg: 'Config', height: int, width: int) -> tuple[list[Part], list[str]]:
    from mmengine.model import revert_sync_batchnorm
    from mmengine.registry import MODELS

    from .tasks import task_of

    model = revert_sync_batchnorm(MODELS.build(copy.deepcopy(cfg.model))).requires_grad_(False).to(device)
    model.eval()  # which models with a teacher return nothing from
    for weight in model.parameters() if device == 'cpu' else ():
        weight.zero_()
    multiple = getattr(model.data_preprocessor, 'pad_size_divisor', 1)
    padded = [-(-side // multiple) * multiple for side in (height, width)]
    remarks = [
        f'one image of {height} x {width}' + f', padded to {padded[0]} x {padded[1]}' * (padded != [height, width])
    ]
    modules = dict(_parts(model))
    macs = {}
    with torch.no_grad(), _counter() as counter:
        for name, module in modules.items():
            _watch(module, name, counter, macs)
        remarks += task_of(cfg).run(model, torch.zeros(1, 3, *padded, device=device))
    parts = [Part(name, _size(module), macs.get(name)) for name, module in modules.items()]
    idle = [part.name for part in parts if part.macs is None]
    if idle:
        remarks.append(f'{", ".join(idle)}: not called in testing')
    remarks.append(f"all products of attention and of Newton's steps are counted; {NOT_COUNTED} are not")
    return [*parts, Part('total', _size(model), counter.get_total_flops() // 2)], remarks


def _parts(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Children with parameters by name; heads of several stages in those, the backbone's stages indented after it."""
    for name, module in model.named_children():
        stages = getattr(module, 'stages', None)
        has_stages = isinstance(stages, nn.ModuleList)
        if name == 'roi_head' or isinstance(module, nn.ModuleList) or (has_stages and name != 'backbone'):
            yield from _stages_apart(name, module)
        elif _size(module):
            yield name, module
            if has_stages:
                yield from ((f'  stage {number}', stage) for number, stage in enumerate(stages, start=1))


def _stages_apart(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Children with parameters; a list, which never runs itself, in its modules."""
    for part, inner in module.named_children():
        if isinstance(inner, nn.ModuleList):
            yield from _stages_apart(f'{name}.{part}', inner)
        elif _size(inner):
            yield f'{name}.{part}', inner


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _watch(module: nn.Module, name: str, counter: FlopCounterMode, macs: dict[str, int]) -> None:
    """Add what runs within ``module.forward`` to ``macs[name]``; heads call it without the hooks of a module."""
    forward = module.forward

    def watched(*args, **kwargs):
        before = counter.get_total_flops()
        outputs = forward(*args, **kwargs)
        macs[name] = macs.get(name, 0) + (counter.get_total_flops() - before) // 2
        return outputs

    module.forward = watched


def parts_table(parts: list[Part], remarks: list[str]) -> str:
    """A Markdown table in millions and billions, and the remarks."""
    lines = ['| part | parameters, M | multiply-adds, G |', '|---|---|---|']
    for name, parameters, macs in parts:
        lines.append(
            f'| {name.replace("  ", "- ")} | {parameters / 1e6:.2f} | {"-" if macs is None else f"{macs / 1e9:.2f}"} |'
        )
    return '\n'.join([*lines, '', *remarks])
