"""Loaded files: answers to several threads, and what is said of files and options that are none."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime
import pytest
from known_models import write_means
from onnx import TensorProto, helper

from mmsoft.deploy import ModelFileError, load
from mmsoft.deploy.runtimes import SLOWER

RUNTIMES = ('onnxruntime', 'openvino')


@pytest.fixture(scope='module')
def means(tmp_path_factory):
    return write_means(tmp_path_factory.mktemp('model') / 'means.onnx')


@pytest.mark.parametrize('runtime', RUNTIMES)
def test_threads_that_share_a_model_get_their_own_answers(runtime, means):
    model = load(means, runtime, threads=1)

    def scores(number):
        image = np.full((8 + number % 7, 9 + number % 5, 3), number % 256, np.uint8)
        return model(image).scores

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(scores, range(1000)))
    assert [set(row.round()) for row in found] == [{number % 256} for number in range(1000)]


@pytest.mark.parametrize('runtime', RUNTIMES)
def test_the_reason_why_a_file_cannot_be_loaded_is_told(runtime, means, tmp_path):
    model = onnx.load(means)
    model.graph.node[0].op_type = 'Conjure'
    onnx.save(model, tmp_path / 'unknown.onnx')
    with pytest.raises(ModelFileError, match=f'is no model that {runtime} can load: .*Conjure'):
        load(tmp_path / 'unknown.onnx', runtime)
    with pytest.raises(ValueError, match='threads must be 1 or more; got 0'):
        load(means, runtime, threads=0)


def test_a_file_is_opened_without_a_plan_of_memory(means):
    options = load(means).runtime.session.get_session_options()
    assert not options.enable_mem_pattern
    assert not options.enable_mem_reuse


def test_a_sum_and_a_norm_stay_two_operators(tmp_path):
    """onnxruntime passes over names of optimizers that it does not know."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 5, 8]) for name in 'xy')
    nodes = [
        helper.make_node('Add', ['x', 'x'], ['sum']),
        helper.make_node('LayerNormalization', ['sum', 'one', 'one'], ['y']),
    ]
    one = onnx.numpy_helper.from_array(np.ones(8, np.float32), 'one')
    graph = helper.make_graph(nodes, 'residual', [x], [y], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9)

    def operators(disabled):
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / 'optimized.onnx')
        providers = ['CPUExecutionProvider']
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers, disabled_optimizers=disabled)
        return [node.op_type for node in onnx.load(tmp_path / 'optimized.onnx').graph.node]

    assert operators([]) == ['SkipLayerNormalization']
    assert operators(SLOWER) == ['Add', 'LayerNormalization']
