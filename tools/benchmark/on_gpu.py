"""What tools/check_gpu.py does on a device: kernels against float64, time and memory, smaller where memory ends."""

import copy
import gc
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Conv2d, Identity, LayerNorm, Linear, Module

from mmsoft.ops import position_angles
from mmsoft.ops.dispatch import OPERATORS, PORTABLE, Operator, explain, kernels

from .cases import OURS, PRECISIONS, Case, build_backbone
from .measure import Record, _answer, _Runs
from .suites import name_of

TRITON = 'triton'
# Of the largest difference over the largest value. References get the same rounded inputs; results are rounded once,
# products that feed others more often.
TOLERANCES = dict(fp32=1e-4, fp16=1e-2, bf16=6e-2)
MODEL_TOLERANCE = 1e-3  # of whole networks in fp32, gradients as one vector
# Shapes that the kernels serve, small and as in networks; of other operators their examples.
SHAPES: dict[str, tuple[Callable[[Any], tuple], ...]] = dict(
    softmax_free_attention=(
        lambda r: (r(2, 3, 20, 8), r(2, 3, 5, 8), r(2, 3, 20, 8)),
        lambda r: (r(2, 4, 3136, 32), r(2, 4, 49, 32), r(2, 4, 3136, 32)),
    ),
    inline_attention=(
        lambda r: (r(2, 3, 9, 4), r(2, 3, 9, 4), r(2, 3, 9, 4)),
        lambda r: (r(2, 3, 3136, 32), r(2, 3, 3136, 32), r(2, 3, 3136, 32)),
    ),
    linear_attention=(
        lambda r: (r(2, 3, 9, 4).abs(), r(2, 3, 7, 4).abs(), r(2, 3, 7, 5)),
        lambda r: (r(2, 3, 3136, 32).abs(), r(2, 3, 3136, 32).abs(), r(2, 3, 3136, 32)),
    ),
    inline_with_convolution=(
        lambda r: (r(2, 21, 6), r(2, 21, 12), r(2, 6, 3, 3), (4, 5), 3),
        lambda r: (r(2, 3136, 96), r(2, 3136, 192), r(2, 96, 3, 3), (56, 56), 3),
    ),
    add_norm=(
        lambda r: (r(2, 5, 8), r(2, 5, 8), LayerNorm(8), Identity()),
        lambda r: (r(2, 3136, 384), r(2, 3136, 384), LayerNorm(384), Identity()),
    ),
    add_head_convolution=(
        lambda r: (r(2, 21, 6), r(2, 21, 6), r(3, 1, 3, 5), (4, 5)),
        lambda r: (r(2, 3136, 96), r(2, 3136, 96), r(3, 1, 9, 9), (56, 56)),
    ),
    linear_gelu=(
        lambda r: (r(2, 5, 8), Linear(8, 12), Linear, 'none'),
        lambda r: (r(2, 3136, 96), Linear(96, 384), Linear, 'tanh'),
    ),
    dynamic_depthwise=(
        lambda r: (r(2, 4, 6, 5), r(2, 4, 3, 3)),
        lambda r: (r(2, 96, 56, 61), r(2, 96, 3, 3)),
    ),
    add_depthwise=(
        lambda r: (r(2, 4, 6, 5), r(2, 4, 6, 5), r(2, 4, 3, 3), Conv2d(4, 4, 3, padding=1, groups=4)),
        lambda r: (r(2, 96, 56, 61), r(2, 96, 56, 61), r(2, 96, 3, 3), Conv2d(96, 96, 3, padding=1, groups=96)),
    ),
    rotary_features=(
        lambda r: (r(2, 2, 7, 4), *position_angles((2, 3), 1, False)),
        lambda r: (r(2, 3, 3136, 32), *position_angles((56, 56), 24, False)),
    ),
    rotate=(
        lambda r: (r(2, 2, 7, 4), *position_angles((2, 3), 1, True)),
        lambda r: (r(2, 3, 3136, 32), *position_angles((56, 56), 8, True)),
    ),
)
CONSTANT = dict(rotary_features=(1, 2), rotate=(1, 2))  # arguments that stay in float32 and have no gradient: angles
MODELS = ('soft_pp_small', 'inline_swin_tiny', 'swin_tiny', 'convnext_tiny')
SIZES = ((224, 224), (800, 1344))
SMALLER = ((512, 864), (320, 544), (224, 224), (128, 128))  # where memory does not suffice


class Check(NamedTuple):
    """One comparison with float64: the larger error of outputs and of gradients, or what ``failed``."""

    name: str
    output: float
    gradient: float
    tolerance: float
    failed: str | None = None

    @property
    def passed(self) -> bool:
        # each by itself: NaN is below nothing, but max() may pass it by
        return self.failed is None and self.output <= self.tolerance and self.gradient <= self.tolerance


def check_operators(device: str, small: bool) -> Iterator[Check]:
    """Every operator that has a kernel in Triton, in every precision; ``small``: small shapes only."""
    for op in OPERATORS.values():
        if op.example is not None and any(i.kind == TRITON for i in op.implementations):
            examples = SHAPES.get(op.name, (op.example,))
            for size, example in zip(('small', 'large'), examples[: 1 if small else None], strict=False):
                for precision, tolerance in TOLERANCES.items():
                    yield _tried(
                        f'{op.name}, {size}, {precision}', tolerance, _operator, op, example, precision, device
                    )


def check_models(device: str, models: Sequence[str], side: int) -> Iterator[Check]:
    """Whole networks with kernels, beside themselves in float64 without; in fp32."""
    for name in models:
        yield _tried(f'{name}, {side} x {side}, fp32', MODEL_TOLERANCE, _model, name, side, device)


def _tried(name: str, tolerance: float, call: Callable[..., tuple[float, float]], *args: Any) -> Check:
    try:
        return Check(name, *call(*args), tolerance)
    except Exception as error:
        text = (str(error).strip() or 'no message').splitlines()[0]
        return Check(name, float('nan'), float('nan'), tolerance, f'{type(error).__name__}: {text}')


def _operator(op: Operator, example: Callable[..., tuple], precision: str, device: str) -> tuple[float, float]:
    generator = torch.Generator().manual_seed(0)
    inputs = example(lambda *shape: torch.randn(*shape, generator=generator))
    constant = CONSTANT.get(op.name, ())
    inputs = [_placed(x, device, None if i in constant else PRECISIONS[precision]) for i, x in enumerate(inputs)]
    wide = [copy.deepcopy(x).double() if isinstance(x, (Tensor, Module)) else x for x in inputs]
    narrow_leaves, wide_leaves = _leaves(inputs, constant), _leaves(wide, constant)
    if op.choice(*inputs) != TRITON:
        raise RuntimeError(f'its kernel does not run: {explain(op, *inputs)}')
    found = _outputs(op(*inputs))
    with kernels(PORTABLE):
        expected = _outputs(op(*wide))
    weights = [torch.randn(y.shape, generator=generator).to(device) for y in found]
    gradients = [
        torch.autograd.grad(outputs, leaves, [w.to(y.dtype) for w, y in zip(weights, outputs, strict=True)])
        for outputs, leaves in ((found, narrow_leaves), (expected, wide_leaves))
    ]
    return _worst(found, expected), _worst(*gradients)


def _placed(x: Any, device: str, dtype: torch.dtype | None) -> Any:
    return x.to(device, dtype) if isinstance(x, (Tensor, Module)) else x


def _leaves(inputs: Sequence[Any], constant: Sequence[int]) -> list[Tensor]:
    """What has a gradient: the tensors that are not constant and the modules' parameters."""
    parameters = [p for x in inputs if isinstance(x, Module) for p in x.parameters()]
    tensors = [x for i, x in enumerate(inputs) if isinstance(x, Tensor) and i not in constant]
    return [x.requires_grad_() for x in tensors] + parameters


def _outputs(found: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (found,) if isinstance(found, Tensor) else found


def _model(name: str, side: int, device: str) -> tuple[float, float]:
    torch.manual_seed(0)
    model = build_backbone(Case(name, (side, side))).to(device).eval()
    images = torch.randn(1, 3, side, side).to(device)
    found = _maps_and_gradient(model, images)
    with kernels(PORTABLE):
        expected = _maps_and_gradient(model.double(), images.double())
    return _worst(found[0], expected[0]), _error(found[1], expected[1])


def _maps_and_gradient(model: torch.nn.Module, images: Tensor) -> tuple[list[Tensor], Tensor]:
    model.zero_grad()
    maps = model(images)
    sum(x.square().mean() for x in maps).backward()
    return list(maps), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _worst(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest error, or NaN if one is."""
    return torch.tensor([_error(*pair) for pair in zip(found, expected, strict=True)]).max().item()


def _error(found: Tensor, expected: Tensor) -> float:
    """Largest absolute difference over the largest absolute value expected."""
    expected = expected.detach().double()
    return ((found.detach().double() - expected).abs().max() / expected.abs().max()).item()


def cases(device: str, sizes: Sequence[tuple[int, int]], models: Sequence[str], all_compiled: bool) -> list[list[Case]]:
    """A list a model and size: every task and precision, eager and as CUDA graph; compiled at the largest in bf16."""
    found = []
    for size in sizes:
        for model in models:
            chosen = []
            for task in ('forward', 'train'):
                for precision in PRECISIONS:
                    case = Case(model, size, task, precision, device=device)
                    chosen.append(case)
                    if device == 'cuda':
                        chosen.append(case._replace(graph=True))
                    if all_compiled or (size == sizes[-1] and precision == 'bf16' and device == 'cuda'):
                        chosen.append(case._replace(compiled=True))
            found.append(chosen)
    return found


def measure(chosen: Sequence[Case], rounds: int) -> list[Record]:
    """In a process of its own, which may die of what is measured."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context('spawn')) as pool:
        try:
            return pool.submit(_measure_all, chosen, rounds).result()
        except Exception as error:  # the process ended
            return [Record(_group(case), case, failure=f'{type(error).__name__}: its process ended') for case in chosen]


def _measure_all(chosen: Sequence[Case], rounds: int) -> list[Record]:
    return [record for case in chosen for record in measure_down(case, rounds)]


def measure_down(case: Case, rounds: int) -> list[Record]:
    """The case; and, if memory does not suffice, again at smaller sizes until it does."""
    sizes = [case.size, *(size for size in SMALLER if size < case.size)]
    records: list[Record] = []
    for size in sizes:
        records.append(_measured(case._replace(size=size), rounds))
        if 'out of memory' not in (records[-1].failure or ''):
            break
    return records


def _measured(case: Case, rounds: int) -> Record:
    record, runs = Record(_group(case), case), _Runs(case)

    def ask(request: str) -> Any:
        if record.failure is None:
            answer, record.failure = _answer(runs, request)
            return answer
        return None

    torch._dynamo.reset()  # or compilations of other cases would count against a limit
    record.parameters = ask('build')
    ask('warm_up')
    for _ in range(rounds):
        if (seconds := ask('round')) is not None:
            record.seconds.append(seconds)
    if (peak := ask('weigh')) is not None:
        record.peak_mib.append(peak)
    gc.collect()
    return record


def _group(case: Case) -> str:
    return f'{case.task} {name_of(case.size)}'


def our_models(models: Sequence[str]) -> list[str]:
    return [name for name in models if name in OURS]
