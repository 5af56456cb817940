"""Loaded files: answers to several threads, and what is said of files and options that are none."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from known_models import write_means

from mmsoft.deploy import ModelFileError, load

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
