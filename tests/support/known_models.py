"""Files of a few nodes whose answers are known, in the format of ``mmsoft export``."""

import json

import numpy as np
import onnx
from onnx import TensorProto, helper


def write_known(path, nodes, constants, outputs, about):
    """A graph of these nodes."""
    images = helper.make_tensor_value_info('images', TensorProto.FLOAT, ['n', 3, 'h', 'w'])
    size = helper.make_tensor_value_info('size', TensorProto.INT64, [2])
    inputs = [images] if about['task'] == 'classes' else [images, size]
    found = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
    values = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    model = helper.make_model(
        helper.make_graph(nodes, 'known', inputs, found, values), opset_imports=[helper.make_opsetid('', 18)]
    )
    model.ir_version = 9
    about = dict(format=1, mmsoft='0.1.0', preprocessing=dict(exif=True, scale=None), **about)
    entry = model.metadata_props.add()
    entry.key, entry.value = 'mmsoft', json.dumps(about)
    onnx.save(model, path)
    return path


def write_means(path):
    """A classifier whose scores are the mean red, green and blue of a picture: they tell which one it was."""
    nodes = [helper.make_node('ReduceMean', ['images', 'axes'], ['scores'], keepdims=0)]
    about = dict(task='classes', classes=['red', 'green', 'blue'], palette=[[255, 0, 0], [0, 255, 0], [0, 0, 255]])
    return write_known(path, nodes, dict(axes=np.array([2, 3])), [('scores', TensorProto.FLOAT)], about)
