"""What a GPU would be asked to do: launches and bytes of a forward pass and of a training step, without a GPU.

Tensors are on the meta device, which stands for a GPU: nothing is computed, and kernels in Triton are chosen as there.
Every operator that is not a view counts as one launch and as the bytes of its tensors. Some operators launch two or
three, a compiler fuses many; so compare models by it, and do not read it as a clock. Torch's softmax attention is one
kernel on a GPU, and is counted so, in peers as in ours; on the meta device torch would take it apart.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmsoft.engine.complexity import count_call
from mmsoft.ops.dispatch import PORTABLE, kernels

from .cases import Case, build_backbone

KERNELS = 'kernels'  # what operators choose on a GPU with Triton; beside PORTABLE
NAMES = """
view _unsafe_view t transpose permute expand select slice unsqueeze squeeze alias detach as_strided split
split_with_sizes chunk unbind reshape _reshape_alias unfold diagonal lift_fresh is_same_size empty empty_like
empty_strided new_empty new_empty_strided sym_size sym_stride sym_numel device dim
"""
VIEWS = frozenset(NAMES.split())  # they launch nothing


class Launches(TorchDispatchMode):
    """Counts launches and bytes by the operator's name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition('::')[2]
        if name not in VIEWS:
            tensors = (t for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor))
            self.calls[name] += 1
            self.bytes[name] += sum(t.numel() * t.element_size() for t in tensors)
        return out


class FusedAttention(TorchFunctionMode):
    """Sends torch's softmax attention of meta tensors to the kernel that a GPU has for it in every precision."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and args[0].is_meta and args[0].dim() == 4:
            return _fused_attention(*args, **kwargs)
        return func(*args, **kwargs)


def _fused_attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    if attn_mask is not None:
        attn_mask = attn_mask.to(q.dtype).expand(*q.shape[:3], k.shape[2])
    keep = torch.is_grad_enabled() and q.requires_grad
    return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, attn_mask, keep, **options)[0]


class Asked(NamedTuple):
    """What a pass asks for."""

    launches: int
    bytes_moved: int
    macs: int


class Row(NamedTuple):
    """What one model asks for by one road; ``asked`` in all, ``calls`` and ``bytes`` by operator."""

    model: str
    road: str
    task: str
    asked: Asked
    calls: Counter[str]
    bytes: Counter[str]


def step_of(case: Case, device: str) -> Callable[[], None]:
    """A forward pass of the backbone, with a backward pass if the task is to train."""
    train = case.task == 'train'
    # peers in torch's own layout: the meta device does not tell what channels last would copy
    model = build_backbone(case).to(device, memory_format=torch.contiguous_format)
    model.train(train)
    images = torch.zeros(case.batch, 3, *case.size, device=device)

    def step() -> None:
        with torch.set_grad_enabled(train):
            maps = model(images)
            if train:
                sum(x.sum() for x in maps).backward()

    return step


def count(case: Case, road: str, device: str = 'meta') -> Row:
    """Multiply-adds are the portable road's, which shows its products; a step of training has three times forward's."""
    step = step_of(case, device)
    with kernels(None if road == KERNELS else PORTABLE), FusedAttention(), Launches() as seen:
        step()
    with kernels(PORTABLE):
        macs = count_call(step_of(case._replace(task='forward'), device)) * (3 if case.task == 'train' else 1)
    asked = Asked(seen.calls.total(), seen.bytes.total(), macs)
    return Row(case.model, road, case.task, asked, seen.calls, seen.bytes)
