"""Graphs of whole modules, by torch.export, and their files: ONNX, and torch's own ``.pt2``."""

import contextlib
import inspect
import io
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.fx.experimental._config as symbols
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import mmsoft
from mmsoft.deploy.runtimes import FORMAT, KEY
from mmsoft.files import json_plain
from mmsoft.layers.cross_shaped_attention import CrossShapedAttention
from mmsoft.layers.rotary_attention import RotaryAttention
from mmsoft.layers.swin import WindowAttention
from mmsoft.ops.landmarks import averages, weigh_sides
from mmsoft.versions import first_line, require
from mmsoft.weights.writing import whole_file

from .boxes import onnx_floor_divide, onnx_suppress, suppress, suppress_by_torchvision
from .building import ExportError
from .quantizing import quantize
from .whole import RawNetwork, Whole, WholeClassifier, WholeDetector

OPSET = 18  # the oldest with all that is used: TensorRT and OpenVINO know it
OWN_TRANSLATIONS = {
    torch.ops.mmsoft.suppress.default: onnx_suppress,
    torch.ops.aten.floor_divide.default: onnx_floor_divide,
}
EXAMPLE = (161, 203)  # of sides that are symbols in the graph: any that are no multiples


def make_graph(whole: Whole, side: tuple[int, int] | None, torch_alone: bool = False) -> ExportedProgram:
    """The graph, of any number of pictures; of any height and width unless ``side`` fixes them.

    ``torch_alone``: of operators of torch and torchvision, and none of ours that ONNX has another for.
    """
    _check_torch()
    if isinstance(whole, WholeDetector):
        whole.suppress = suppress_by_torchvision if torch_alone else suppress
    least = least_side(whole)
    images = torch.rand(2, 3, *(side or [max(example, least + example // 2) for example in EXAMPLE])) * 255
    free: dict[int, Any] = {0: Dim('batch', min=1, max=4096)}
    if side is None:
        free |= {2: Dim('height', min=least, max=16384), 3: Dim('width', min=least, max=16384)}
    inputs, shapes = (images,), (free,)
    if takes_size(whole):
        inputs, shapes = (images, torch.tensor([300, 420])), (free, None)
    options = dict(strict=False, prefer_deferred_runtime_asserts_over_guards=True)
    with (
        torch.no_grad(),
        symbols.patch(backed_size_oblivious=True),
        pooling_of_symbols(),
        enlarging_of_symbols(whole),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter('ignore')
        try:
            return torch.export.export(whole, inputs, dynamic_shapes=shapes, **options)
        except Exception as error:  # torch fails in many ways
            raise ExportError(
                f'{type(whole.model).__name__} cannot be exported: {first_line(error)}. A part of it asks for values, '
                'or is no operator that torch.export knows'
            ) from error


def _check_torch() -> None:
    """Graphs of any size ask torch.export for what older ones lack."""
    known = inspect.signature(torch.export.export).parameters
    if 'prefer_deferred_runtime_asserts_over_guards' not in known or not hasattr(symbols, 'backed_size_oblivious'):
        raise ExportError(f'torch {torch.__version__} is too old to export whole models: 2.12 does it')


@contextlib.contextmanager
def pooling_of_symbols() -> Iterator[None]:
    """Let adaptive pooling of maps whose sides are symbols be products with two matrices of averages."""
    original = F.adaptive_avg_pool2d

    def pool(x: Tensor, output_size: Any) -> Tensor:
        if not any(isinstance(side, torch.SymInt) for side in x.shape[-2:]):
            return original(x, output_size)
        sides = output_size if isinstance(output_size, (tuple, list)) else (output_size, output_size)
        rows, columns = (averages(side, size, x.device) for side, size in zip(sides, x.shape[-2:], strict=True))
        return weigh_sides(x, rows, columns)

    F.adaptive_avg_pool2d = pool
    try:
        yield
    finally:
        F.adaptive_avg_pool2d = original


@contextlib.contextmanager
def enlarging_of_symbols(whole: nn.Module) -> Iterator[None]:
    """Let mmseg's Upsample, which Semantic FPN has, hand its factor on: it would make numbers of the sides."""
    named = [cast(Any, part) for part in whole.modules() if type(part).__name__ == 'Upsample']
    parts = [part for part in named if not part.size]
    for part in parts:
        options = dict(scale_factor=part.scale_factor, mode=part.mode, align_corners=part.align_corners)
        part.forward = partial(F.interpolate, **options)
    try:
        yield
    finally:
        for part in parts:
            del part.forward


def write_onnx(
    graph: ExportedProgram, whole: Whole, about: Mapping[str, Any], path: Path, measured: Sequence[str] = ()
) -> None:
    """A whole file, or none, that passes ONNX's own checks; in int8 if there are pictures to measure ranges on."""
    require('onnx', 'onnxscript')

    names = ['images', 'size'] if takes_size(whole) else ['images']
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            program = torch.onnx.export(
                graph,
                (),
                dynamo=True,
                opset_version=OPSET,
                input_names=names,
                output_names=list(whole.outputs) or None,
                custom_translation_table=OWN_TRANSLATIONS,
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise ExportError(f'ONNX has no operator for a part of the model: {first_line(error)}') from error
    for node in program.model.graph.all_nodes():  # where in which file each node came from
        node.metadata_props.clear()
    program.model.metadata_props[KEY] = described(about, opset=OPSET)
    with whole_file(path) as partial:
        program.save(partial)
        if measured:
            quantize(partial, measured)
        check_file(partial, path)


def without_assertions(graph: ExportedProgram) -> ExportedProgram:
    """The same graph: they ask for strides and copies, which eager code chooses anew, and ONNX has none of them."""
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.aten._assert_scalar.default:
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.graph_module.recompile()
    return graph


def write_pt2(graph: ExportedProgram, about: Mapping[str, Any], path: Path) -> None:
    """torch's own file, for Python, C++ and AOTInductor; a whole one, or none. ``extra_files`` has the metadata."""
    without_assertions(graph)
    with whole_file(path) as partial, partial.open('wb') as stream:
        torch.export.save(graph, stream, extra_files={KEY: described(about)})


class ProgramRuntime:
    """A ``.pt2`` in the place of onnxruntime, for the comparison of what was just written."""

    def __init__(self, path: Path, threads: int | None) -> None:
        self.extra = {KEY: ''}
        self.program = torch.export.load(io.BytesIO(path.read_bytes()), extra_files=self.extra).module()

    def about(self) -> str:
        return self.extra[KEY]

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            found = self.program(*map(torch.from_numpy, inputs.values()))
        return [value.numpy() for value in (found if isinstance(found, (tuple, list)) else [found])]


def least_side(whole: Whole) -> int:
    """Of pictures as the network is given them.

    Shifted windows need a last map larger than a window: on a smaller one they would not shift, which is another graph.
    Stripes need a last map of two pixels, others every map but the last, if not all is padded to whole strides. Blocks
    that convolve the last map need two pixels of it: torch.export makes another graph for a convolution of one. Of
    backbones from elsewhere nobody knows whether they do.
    """
    parts = list(whole.modules())
    windows = [32 * part.window_size[0] + 1 for part in parts if isinstance(part, WindowAttention)]
    if windows:
        return max(windows)
    foreign = not type(getattr(whole.model, 'backbone', whole.model)).__module__.startswith('mmsoft.')
    if foreign or any(isinstance(part, RotaryAttention) for part in parts):
        return 33
    if whole.multiple >= 32:
        return 1
    return 33 if any(isinstance(part, CrossShapedAttention) for part in parts) else 17


def takes_size(whole: Whole) -> bool:
    """Whether answers are brought to the size of the picture."""
    return not isinstance(whole, (WholeClassifier, RawNetwork))


def described(about: Mapping[str, Any], **more: Any) -> str:
    """The metadata of a file."""
    return json.dumps(json_plain(dict(about, **more, format=FORMAT, mmsoft=mmsoft.__version__)))


def check_file(file: Path, path: Path) -> None:
    """Raise unless onnx's full check passes, operators are standard ones and no constant is as large as a map."""
    import onnx

    onnx.checker.check_model(str(file), full_check=True)
    foreign = sorted({node.domain for node in onnx.load(file).graph.node if node.domain not in ('', 'ai.onnx')})
    if foreign:
        raise ExportError(f'{str(path)!r} would have operators of {", ".join(foreign)}, which not every runtime has')
