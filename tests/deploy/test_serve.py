"""The service, as a process of its own: answers of a known model, limits, refusals, and the page in a real browser."""

import http.client
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from helpers import ROOT
from known_models import write_known, write_means
from onnx import TensorProto, helper
from PIL import Image

from mmsoft.deploy import load, serve
from mmsoft.deploy.serve import run_lengths

pytestmark = pytest.mark.slow
REQUESTS, CLIENTS = 1000, 16


@pytest.fixture(scope='module')
def means(tmp_path_factory):
    return write_means(tmp_path_factory.mktemp('model') / 'means.onnx')


@pytest.fixture(scope='module')
def box(tmp_path_factory):
    """A detector that finds the same box in the first picture of a batch, whatever it shows."""
    constants = dict(
        boxes_=np.array([[20, 10, 80, 50]], np.float32),
        scores_=np.array([0.9], np.float32),
        labels_=np.array([0], np.int64),
        image_=np.array([0], np.int64),
    )
    kinds = dict(boxes=TensorProto.FLOAT, scores=TensorProto.FLOAT, labels=TensorProto.INT64, image=TensorProto.INT64)
    nodes = [helper.make_node('Identity', [f'{name}_'], [name]) for name in kinds]
    about = dict(task='boxes', classes=['kite'], palette=[[255, 0, 0]])
    return write_known(tmp_path_factory.mktemp('model') / 'box.onnx', nodes, constants, list(kinds.items()), about)


@contextmanager
def serving(model, *options):
    """The port of a server."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    command = [sys.executable, '-m', 'mmsoft.deploy.serve', str(model), '--port', str(port), *options]
    process = subprocess.Popen(command, env=dict(os.environ, PYTHONPATH=str(ROOT)))
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(('127.0.0.1', port)) == 0:
                    break
            assert process.poll() is None
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def ask(port, method, path, data=None):
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
    connection.request(method, path, data)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def post(port, data):
    return ask(port, 'POST', '/predict', data)


def picture(colour, size=(24, 16), kind='PNG'):
    file = io.BytesIO()
    Image.new('RGB', size, colour).save(file, kind)
    return file.getvalue()


def test_a_thousand_requests_of_sixteen_clients_get_their_own_answers(means):
    def colour(number):
        return number % 251, number // 4 % 256, 255 - number % 256

    def one(number):
        size = (24, 16) if number % 3 else (17, 9)
        return post(port, picture(colour(number), size))

    with serving(means, '--waiting', '32') as port, ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(one, range(REQUESTS)))
        assert ask(port, 'GET', '/about')[1]['classes'] == ['red', 'green', 'blue']
    assert len(answers) == REQUESTS
    for number, (status, found) in enumerate(answers):
        assert status == 200, found
        scores = dict(zip(found['names'], found['scores'], strict=True))
        assert [round(scores[name]) for name in ('red', 'green', 'blue')] == list(colour(number)), number
        assert (found['width'], found['height']) == ((24, 16) if number % 3 else (17, 9))


def test_what_is_refused_gets_a_sentence(means, tmp_path):
    with serving(means, '--megabytes', '0.1', '--megapixels', '0.01', '--waiting', '1', '--batch', '1') as port:
        for data, status, sentence in (
            (b'', 422, 'the request holds no picture: send the bytes of an image file as its body'),
            (b'text', 422, "'the bytes given' is no picture that Pillow can read"),
            (picture('red')[:40], 422, 'is no picture that Pillow can read'),
            (bytes(200_000), 413, 'the request is larger than 0.1 MB'),
            (picture('red', (200, 100)), 413, 'the picture has 200 x 100 pixels; this server takes up to 0.01 megapix'),
        ):
            got, answer = post(port, data)
            assert got == status, answer
            assert sentence in answer['error']
        for method, path, status in (('GET', '/predict', 405), ('POST', '/elsewhere', 404)):
            sentence = f'{method} {path}: ask for GET /, GET /about or POST /predict'
            assert ask(port, method, path) == (status, dict(error=sentence))
        assert post(port, picture('red'))[0] == 200
        with ThreadPoolExecutor(CLIENTS) as clients:
            found = list(clients.map(lambda _: post(port, picture('blue')), range(200)))
        assert {status for status, _ in found} <= {200, 503}
        assert all(
            status == 200 or 'are waiting already: try again later' in answer['error'] for status, answer in found
        )
    for arguments, sentence in (
        ([tmp_path / 'none.onnx'], 'there is no such model file'),
        ([means, '--batch', '0'], 'error: --batch must be more than 0; got 0'),
        ([means, '--threads', '-1'], 'error: --threads must be more than 0; got -1'),
    ):
        command = [sys.executable, '-m', 'mmsoft.deploy.serve', *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, PYTHONPATH=str(ROOT)))
        assert done.returncode == 1
        assert sentence in done.stderr
        assert 'Traceback' not in done.stderr


def test_run_lengths_are_those_of_coco():
    from pycocotools import mask as coco

    rng = np.random.default_rng(0)
    for mask in (rng.random((7, 5)) > 0.5, np.ones((3, 4), bool), np.zeros((3, 4), bool)):
        rle = coco.frPyObjects(run_lengths(mask), *mask.shape)
        assert (coco.decode(rle) == mask).all()


@pytest.mark.skipif(not shutil.which('chromium'), reason='needs Chromium (Debian: chromium, chromium-driver)')
def test_the_page_draws_what_is_found(box, tmp_path):
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    assert load(box)(Image.new('RGB', (100, 60))).names == ['kite']
    (tmp_path / 'grey.png').write_bytes(picture('grey', (100, 60)))
    (tmp_path / 'text.png').write_text('no picture')
    options = webdriver.ChromeOptions()
    for argument in (
        '--headless=new',
        '--no-sandbox',
        '--disable-dev-shm-usage',
        f'--user-data-dir={tmp_path}/profile',
    ):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which('chromedriver'))
    with serving(box) as port, webdriver.Chrome(options, service) as browser:
        browser.get(f'http://127.0.0.1:{port}/')
        chosen, said = browser.find_element(By.ID, 'file'), browser.find_element(By.ID, 'said')
        chosen.send_keys(str(tmp_path / 'grey.png'))
        WebDriverWait(browser, 30).until(lambda _: said.text == '1 found')
        pixel = 'return [...context.getImageData(arguments[0], arguments[1], 1, 1).data]'
        red, grey = browser.execute_script(pixel, 20, 30), browser.execute_script(pixel, 50, 30)
        assert red[0] > 200
        assert red[1] < 100
        assert grey[:3] == [128, 128, 128]
        assert 'kite' in browser.find_element(By.ID, 'found').text
        chosen.send_keys(str(tmp_path / 'text.png'))
        WebDriverWait(browser, 30).until(lambda _: 'no picture that Pillow can read' in said.text)
        assert said.get_attribute('class') == 'error'


def test_few_pictures_are_decoded_at_a_time(means, monkeypatch):
    model, lock, reading, most = load(means), threading.Lock(), 0, 0
    prepare = model.prepare

    def watched(image):
        nonlocal reading, most
        with lock:
            reading += 1
            most = max(most, reading)
        time.sleep(0.02)
        with lock:
            reading -= 1
        return prepare(image)

    monkeypatch.setattr(model, 'prepare', watched)
    batches = serve.Batches(model, serve.Limits())
    with ThreadPoolExecutor(CLIENTS) as clients:
        found = list(clients.map(batches, [picture('red')] * 3 * CLIENTS))
    assert most == serve.READERS < CLIENTS
    assert all(result.names[0] == 'red' for result in found)
