"""int8 by onnxruntime's static quantisation: layers with weights compute in whole numbers, all else stays float.

Kernel exponents, sums, Newton's iteration, softmax, norms and what follows the network have no weights, and so are
left as they are. What a layer gives is float again: only what goes into layers is rounded.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmsoft.deploy import Model, read_picture
from mmsoft.deploy.runtimes import OnnxRuntime
from mmsoft.engine.predictor import find_inputs, is_video

from .building import ExportError

LAYERS = ('Conv', 'Gemm', 'MatMul')
DELICATE = '.landmarks.'  # weights that make landmarks: kernel exponents are of distances to them
MOST = 100  # pictures that ranges are measured on


def quantize(path: Path, pictures: Sequence[Any]) -> None:
    """Rewrite the file in int8, with the ranges that the pictures have in its layers."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        """One after the other, as onnxruntime asks."""

        def __init__(self) -> None:
            self.left = _inputs(model, pictures)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    model, content = Model(path, OnnxRuntime), onnx.load(path)
    names = _layers(content.graph)
    logging.disable(logging.WARNING)  # advice to infer shapes, which are there
    try:
        quantize_static(
            content,
            path,
            Reader(),
            quant_format=QuantFormat.QDQ,
            nodes_to_quantize=names,
            per_channel=True,
            reduce_range=True,  # 7 bits of weights: without VNNI, processors add two products of 8 in 16 bits
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options=dict(OpTypesToExcludeOutputQuantization=list(LAYERS), QuantizeBias=False),
        )
    finally:
        logging.disable(logging.NOTSET)


def _inputs(model: Model, pictures: Sequence[Any]) -> Iterator[dict[str, np.ndarray]]:
    for picture in pictures:
        image = read_picture(picture, model.steps['exif'])
        yield model.inputs(model.prepare(image)[None], image.shape[:2])


def _layers(graph: Any) -> list[str]:
    """Names of nodes that multiply by weights, after each got an input of its own: onnxruntime rounds a value for all.

    So a residual sum keeps its value as it is.
    """
    from onnx import helper

    weights = {weight.name for weight in graph.initializer}
    nodes, names, own = [], [], {}
    for node in graph.node:
        if node.op_type in LAYERS and node.input[1] in weights and DELICATE not in node.input[1]:
            names.append(node.name)
            value = node.input[0]
            if value not in own:
                own[value] = f'{value}_in'
                nodes.append(helper.make_node('Identity', [value], [own[value]], f'own_{value}'))
            node.input[0] = own[value]
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return names


def split_folder(folder: str | Path) -> tuple[list[str], list[str]]:
    """Its pictures: those that ranges are measured on, at most MOST from all over it, and the first and the last.

    These are for the comparison.
    """
    files = [str(file) for file in find_inputs([str(folder)]).values() if not is_video(file)]
    if len(files) < 3:
        raise ExportError(
            f'--images {str(folder)!r} has {len(files)} pictures, and int8 needs at least 3 to measure ranges: name a '
            'folder of pictures such as the model will see, some dozens of them'
        )
    measured = files[1:-1]
    return measured[:: -(-len(measured) // MOST)], [files[0], files[-1]]
