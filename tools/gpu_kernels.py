"""What the GPU kernels become on real targets, without a GPU: registers, spilled bytes and shared memory.

for example: python tools/gpu_kernels.py --check

This compiles anew, and fails where a kernel exceeds its budget. Without --check it writes docs/gpu_kernels.md.
"""

import argparse
import contextlib
import functools
import io
import json
import multiprocessing
import re
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).parent.parent))
from mmsoft.ops.triton import launch
from mmsoft.ops.triton.depthwise import add_depthwise, depthwise_add, dynamic_depthwise
from mmsoft.ops.triton.inline import inline_attention, inline_with_convolution
from mmsoft.ops.triton.kernel_products import nystrom_product
from mmsoft.ops.triton.landmark_inverse import landmark_inverse
from mmsoft.ops.triton.linear_attention import linear_attention
from mmsoft.ops.triton.linear_gelu import linear_gelu
from mmsoft.ops.triton.residual import add_norm
from mmsoft.ops.triton.rotary import features, turn

DOCS = Path(__file__).parent.parent / 'docs'
PAGE, COUNTS = DOCS / 'gpu_kernels.md', DOCS / 'benchmarks' / 'launches.json'
TYPES = {torch.float32: '*fp32', torch.float16: '*fp16', torch.bfloat16: '*bf16'}
TARGETS = {f'sm_{number}': GPUTarget('cuda', number, 32) for number in (80, 86, 89, 90, 100)}
TARGETS['gfx942'] = GPUTarget('hip', 'gfx942', 64)
# bytes: what a program may have of shared memory; and of spills, None where the compiler does not tell
SHARED = dict(sm_80=163, sm_86=99, sm_89=99, sm_90=227, sm_100=227, gfx942=64)
SPILLS = dict(sm_80=256, sm_86=256, sm_89=256, sm_90=0, sm_100=256)


def landmarks_inverse(dtype: torch.dtype, m: int = 49) -> None:
    if dtype != torch.float32:
        return  # landmarks come from a LayerNorm, which autocast leaves in float32
    for normalize in (True, False):
        for backward in ('unrolled', 'closed'):
            landmarks = torch.empty(2, 3, m, 32, dtype=dtype, device='meta', requires_grad=True)
            inverse = landmark_inverse(landmarks, normalize, 20, backward)
            inverse.backward(torch.empty_like(inverse))


def kernel_products(dtype: torch.dtype) -> None:
    half = dict(dtype=dtype, device='meta', requires_grad=True)
    q, k, v = (torch.empty(2, 800, 3, 32, **half) for _ in range(3))
    landmarks = torch.empty(2, 3, 49, 32, device='meta', requires_grad=True)
    matrix = torch.empty(2, 3, 49, 49, device='meta', requires_grad=True)
    for keys in (None, k) if dtype == torch.float32 else (None,):
        y = nystrom_product(q, landmarks, v, matrix, keys)
        y.backward(torch.empty_like(y))


def inline(dtype: torch.dtype) -> None:
    for width, kernel in ((32, 'exp'), (64, 'identity')):
        shape = 2, 800, 3, width
        q, k, v = (torch.empty(shape, dtype=dtype, device='meta', requires_grad=True) for _ in range(3))
        y = inline_attention(q, k, v, kernel)
        y.backward(torch.empty_like(y))
        shapes = (2, 800, 3 * width), (2, 800, 6 * width), (2, 3 * width, 3, 3)
        joint = (torch.empty(some, dtype=dtype, device='meta', requires_grad=True) for some in shapes)
        y = inline_with_convolution(*joint, (20, 40), 3, kernel)
        y.backward(torch.empty_like(y))


def linear(dtype: torch.dtype) -> None:
    for width, values in ((32, 32), (64, 32), (32, 64), (64, 64)):
        shapes = (2, 800, 3, width), (2, 800, 3, width), (2, 800, 3, values)
        q, k, v = (torch.empty(some, device='meta', requires_grad=True) for some in shapes)
        y = linear_attention(q, k, v.to(dtype), 1e-12, 0.0)
        y.backward(torch.empty_like(y))


def rotary(dtype: torch.dtype) -> None:
    for width in (32, 64):
        x = torch.empty(2, 3, 800, width, dtype=dtype, device='meta', requires_grad=True)
        rows, columns = (torch.empty(side, 3 * width // 4, device='meta') for side in (20, 40))
        results = features(x, rows, columns)
        torch.autograd.backward(results, [torch.empty_like(y) for y in results])
        y = turn(x, rows, columns)
        y.backward(torch.empty_like(y))


def depthwise(dtype: torch.dtype) -> None:
    x = torch.empty(2, 20, 30, 96, dtype=dtype, device='meta', requires_grad=True).permute(0, 3, 1, 2)
    kernels = torch.empty(2, 96, 3, 3, dtype=dtype, device='meta', requires_grad=True)
    bias = torch.empty(96, dtype=dtype, device='meta', requires_grad=True)
    for y in (dynamic_depthwise(x, kernels), add_depthwise(x, x, kernels, bias)):
        y.backward(torch.empty_like(y))
    v, by_head = x.permute(0, 2, 3, 1).flatten(1, 2), torch.empty(1, 3, 9, 9, device='meta', requires_grad=True)
    y = depthwise_add(v, v, by_head, None, 20, 30, False, dtype)
    y.backward(torch.empty_like(y))


def add_norms(dtype: torch.dtype) -> None:
    for width in (96, 1024):
        x, y = (torch.empty(2, 800, width, dtype=dtype, device='meta', requires_grad=True) for _ in range(2))
        weight, bias = (torch.empty(width, dtype=dtype, device='meta', requires_grad=True) for _ in range(2))
        noise = torch.empty(2, dtype=dtype, device='meta')
        s, normed = add_norm(x, y, weight, bias, noise, 1.25, 1e-5, True, dtype)
        torch.autograd.backward((s, normed), (torch.empty_like(s), torch.empty_like(normed)))


def linear_gelus(dtype: torch.dtype) -> None:
    shapes = (800, 96), (384, 96), (384,)
    for tanh in (True, False):
        inputs = (torch.empty(shape, dtype=dtype, device='meta', requires_grad=True) for shape in shapes)
        y, _ = linear_gelu(*inputs, tanh, True)
        y.backward(torch.empty_like(y))


# An operator a case; float16 differs from bfloat16 in no more than the rounding of what is stored.
CASES: list[Callable[[torch.dtype], None]] = [
    landmarks_inverse,
    kernel_products,
    inline,
    linear,
    depthwise,
    add_norms,
    linear_gelus,
    rotary,
]


@dataclass(frozen=True)
class Variant:
    """A kernel with everything that decides its machine code."""

    kernel: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[int, ...]
    options: tuple[tuple[str, int], ...]  # warps and stages

    @property
    def name(self) -> str:
        """The kernel, the types of its tensors where they are not all float32, and the constants in capitals."""
        types = {kind[1:] for _, kind in self.signature if kind.startswith('*')} - {'fp32'}
        constants = [
            key.lower() if value is True else f'{key.lower()} {value}'
            for key, value in self.constants
            if key.isupper() and key not in ('PRECISION', 'CHUNK', 'ITERATIONS', 'REGISTERS') and value is not False
        ]
        return ', '.join([self.kernel.__name__.strip('_').removesuffix('_kernel'), *sorted(types), *constants])


def variant(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Variant:
    """As Triton specialises it: an integer of 1 is a constant, multiples of 16 are known as such."""
    options = dict(options)
    launch_options = tuple((key, options.pop(key)) for key in ('num_warps', 'num_stages') if key in options)
    values = dict(zip(kernel.arg_names, args, strict=False)) | options
    signature, constants, aligned = [], [], []
    for position, name in enumerate(kernel.arg_names):
        value = values[name]
        if isinstance(value, torch.Tensor):
            signature.append((name, TYPES[value.dtype]))
            aligned.append(position)
        elif kernel.params[position].is_constexpr or value is None or value == 1:
            signature.append((name, 'constexpr'))
            constants.append((name, value))
        else:
            signature.append((name, 'fp32' if isinstance(value, float) else 'i32'))
            if value % 16 == 0:
                aligned.append(position)
    return Variant(kernel, tuple(signature), tuple(constants), tuple(aligned), launch_options)


@functools.cache
def variants() -> list[Variant]:
    """What all operators launch, forward and backward, each once."""
    with launch.recorded() as launches:
        for run in CASES:
            for dtype in (torch.float32, torch.float16):
                run(dtype)
    found = [variant(*one) for one in launches]
    return list({one.name: one for one in reversed(found)}.values())[::-1]  # whether sizes are odd makes no row


def compiled(index: int, target: str) -> tuple[int, int, int]:
    """Registers a thread, spilled bytes a thread and shared bytes a program, of a variant on a target."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        result = machine_code(variants()[index], target)
    registers, spilled = amd(result.asm) if target.startswith('gfx') else nvidia(said.getvalue())
    return registers, spilled, result.metadata.shared


def machine_code(one: Variant, target: str) -> Any:
    """What Triton makes of a variant for a target, always anew; ptxas' log goes to the standard output."""
    constants = dict(one.constants)
    if target.startswith('gfx') and 'PRECISION' in constants:
        constants['PRECISION'] = 'ieee'
    if 'REGISTERS' in constants:
        constants['REGISTERS'] = target.startswith('gfx')
    source = ASTSource(
        fn=one.kernel,
        signature=dict(one.signature),
        constexprs={(one.kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs={(position,): [['tt.divisibility', 16]] for position in one.aligned},
    )
    with triton.knobs.compilation.scope(), triton.knobs.nvidia.scope():
        triton.knobs.compilation.always_compile = triton.knobs.nvidia.dump_ptxas_log = True
        return triton.compile(source, target=TARGETS[target], options=dict(one.options))


def nvidia(log: str) -> tuple[int, int]:
    return int(re.search(r'Used (\d+) registers', log)[1]), int(re.search(r'(\d+) bytes spill stores', log)[1])


def amd(asm: dict[str, Any]) -> tuple[int, int]:
    text = asm['amdgcn']
    registers = int(re.search(r'\.vgpr_count:\s*(\d+)', text)[1])
    return registers, 4 * int(re.search(r'\.vgpr_spill_count:\s*(\d+)', text)[1])


def excess(target: str, registers: int, spilled: int, shared: int) -> str | None:
    """What a kernel takes beyond the target's budget."""
    if shared > SHARED[target] * 1024:
        return f'{shared} bytes of shared memory; {target} has {SHARED[target]} KiB'
    if target in SPILLS and spilled > SPILLS[target]:
        return f'{spilled} bytes spilled; at most {SPILLS[target]} are allowed on {target}'
    return None


def row(one: Variant, found: dict[str, tuple[int, int, int]]) -> str:
    """A line of the table: registers / spilled bytes / shared KiB a target."""
    cells = [f'{registers} / {spilled} / {shared / 1024:.0f}' for registers, spilled, shared in found.values()]
    return f'| {one.name} | {dict(one.options)["num_warps"]} | {" | ".join(cells)} |'


# launches and GB of a forward pass, and of it with the backward pass, at 800 x 1344
AIMS = dict(
    soft_pp_small=((280, 5.5), (900, 18)),
    inline_swin_tiny=((250, 5.5), (700, 17)),
    inline_cswin_tiny=((450, 9), (1300, 28)),
)
REMAINS = """
What stays with torch:

- **MLPs wider than 256 in float32** keep torch's product and its GELU. Three products of tensor cores stand for one of
  float32 there; GPUs whose tensor cores are not far ahead (RTX 4090, L4) would lose by it. In half precision all widths
  have the kernel.
- **Stripes of InLine-CSwin** are copied to windows and back, forward and backward (`stack`, `clone`, `cat`), and their
  softmax and 3 x 3 convolutions are torch's. With our convolution a forward pass has fewer launches and a training step
  more, as its gradient takes four.
- **The first norm of a stage and its last sum** stand alone. Between two pre-norm blocks of a stage they are one
  launch, unless a hook, a checkpoint or a compiled block would have to see the blocks one by one.
- **Gradients of biases** are a sum each, products of the projections are torch's, and stochastic depth draws once a
  branch. In float32 the products for the tokens' gradient add up in place; in half precision they are summed after it,
  as the mean's small share would be lost in rounding.
- **Feature maps** of linear attention and Performer are torch's; sums, output and gradients have kernels.
- **Nystromformer** keeps torch's products. Its long products are torch's fused softmax attention already. Its inverse
  is of another order, of a matrix that is not symmetric, with other powers to keep for the gradient: none of SOFT's
  kernel would serve.
- **MILA's and RAVLT's linear attention** has a kernel for the features of queries and keys and what turning makes of
  them; RAVLT's softmax has it for turning alone. Products, sums and weights of keys are torch's, and so is the softmax.

Every launch is an operator of torch, so counters and profilers see it. The residual sum with LayerNorm, the local term
and the linear layer with GELU are one launch each and have their gradient registered with the operator. SOFT's,
InLine's and linear attention are several launches that share a gradient: it is an `autograd.Function` around them.
Registered with each launch it would take more of them; with one operator around all, counters would see one launch for
five.
Gradients of gradients are not there: `kernels('no-triton')` has them.
"""


def aims() -> str:
    """What models ask for, of the committed counts, beside what was aimed at."""
    rows = {(r['model'], r['task']): r for r in json.loads(COUNTS.read_text())['cases'] if r['road'] == 'kernels'}
    lines = ['| model | forward: launches, GB (aim) | forward + backward: launches, GB (aim) |', '|---|---|---|']
    for model, pair in AIMS.items():
        cells = []
        for task, (launches, size) in zip(('forward', 'train'), pair, strict=True):
            row = rows[model, task]
            cells.append(f'{row["launches"]}, {row["bytes_moved"] / 1e9:.2f} ({launches}, {size})')
        lines.append(f'| {model} | {" | ".join(cells)} |')
    return '\n'.join(lines)


def page(rows: list[str]) -> str:
    return f"""# GPU kernels as machine code

Made by `python tools/gpu_kernels.py` with Triton {triton.__version__}, without a GPU; tests compile anew and compare.
A cell: registers a thread / bytes spilled a thread / KiB of shared memory a program. Tensors are float32 where no type
is named. Budgets: no spill on sm_90, at most 256 bytes on the other sm_*; shared memory at most
{', '.join(f'{size} KiB ({target})' for target, size in SHARED.items())}.

| kernel | warps | {' | '.join(TARGETS)} |
|---|---|{'---|' * len(TARGETS)}
""" + '\n'.join(rows) + f"""

## Launches beside the aims

Of `docs/benchmarks/launches.json` (`python tools/benchmark.py --suite launches`), 800 x 1344, batch 1, fp32. Torch's
softmax attention counts as the one kernel that a GPU has for it, in peers as in ours.

{aims()}
{REMAINS}"""  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument('--check', action='store_true', help='only compare with the budgets')
    check = options.parse_args().check
    rows, excesses = [], []
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context('spawn')) as pool:
        jobs = [(one, {t: pool.submit(compiled, i, t) for t in TARGETS}) for i, one in enumerate(variants())]
        for one, futures in jobs:
            found = {target: future.result() for target, future in futures.items()}
            rows.append(row(one, found))
            print(rows[-1], flush=True)
            excesses += [f'{one.name}: {said}' for target, f in found.items() if (said := excess(target, *f))]
    if not check:
        PAGE.write_text(page(rows))
    if excesses:
        sys.exit('\n'.join(excesses))


if __name__ == '__main__':
    main()
