"""Weights on their way: the authors' names and back, conversion, publication, addresses, hubs and hashes."""

import functools
import hashlib
import http.server
import json
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from forking import run_forked
from helpers import MINI, TOOLS, Golden
from mmengine.config import Config
from mmengine.model import BaseModel
from safetensors.torch import load as load_bytes
from safetensors.torch import load_file, save_file
from small_runs import dump, run, small_config

from mmsoft.checkpoints import CheckpointError, load, load_pretrained, read_architecture, read_checkpoint
from mmsoft.checkpoints.converting import convert
from mmsoft.engine.config import check_pretrained
from mmsoft.engine.predictor import Predictor
from mmsoft.engine.publishing import _without_folders, publish
from mmsoft.engine.runner import Runner
from mmsoft.engine.training import run_folder
from mmsoft.models import ARCHS, FAMILIES, SOFT, Arch, SOFTClassifier
from mmsoft.weights import sources
from mmsoft.weights.writing import to_bytes

to_ours, to_published = FAMILIES['SOFT'].to_ours, FAMILIES['SOFT'].to_published


@pytest.fixture(scope='module')
def theirs():
    """Weights with the authors' names."""
    return Golden('soft_pp').weights


def equal(first, second):
    return list(first) == list(second) and all(torch.equal(value, second[name]) for name, value in first.items())


def same(first, second):
    return equal(dict(sorted(first.items())), dict(sorted(second.items())))


def trained(model):
    """Its weights with counters and statistics as after training."""
    for name, buffer in model.named_buffers():
        buffer.copy_(torch.tensor(7) if name.endswith('tracked') else torch.rand_like(buffer))
    return model.state_dict()


def test_names_go_both_ways_exactly(golden):
    """Counters too; what comes out is everything that a model of ours, or of theirs, has."""
    ours = to_ours(golden.weights)
    assert same(to_published(ours), golden.weights)
    for model in (SOFTClassifier(MINI, num_classes=10, img_size=96), SOFT(MINI)):
        weights = trained(model)
        theirs = to_published(weights)
        assert theirs['pos_embed4'].shape[1] == (1 + 3 * 3 if isinstance(model, SOFTClassifier) else 7 * 7)
        counters = [name for name in theirs if name.endswith('num_batches_tracked')]
        assert len(counters) == 6
        names = {name for name in theirs if name not in counters}
        assert names == {
            n for n in golden.weights if isinstance(model, SOFTClassifier) or n[:4] not in ('head', 'cls_')
        }
        assert same(to_ours(theirs), weights)
        model.load_state_dict(to_ours(theirs))


def test_architectures_are_read_from_our_weights():
    for name, arch in ARCHS.items():
        with torch.device('meta'):
            weights = SOFTClassifier(name, num_classes=5).state_dict()
        read = read_architecture(weights)
        assert (read.name, read.arch, read.num_classes) == (name, arch, 5)
    wide = read_architecture(SOFT(MINI, in_channels=4, img_size=(96, 130)).state_dict())
    assert wide.options == dict(arch=Arch(**MINI), in_channels=4, img_size=(96, 132))
    assert (wide.num_classes, wide.name) == (None, None)
    assert wide.build().state_dict()['stages.3.position.table'].shape == (1, 3, 5, 64)
    with pytest.raises(CheckpointError, match=r"lack 'stages\.2\.position\.table'"):
        read_architecture(SOFT(MINI, out_indices=(0, 1)).state_dict())


@pytest.mark.slow
def test_conversion_as_a_user_calls_it(theirs, tmp_path):
    torch.save(dict(state_dict_ema={f'module.{n}': v for n, v in theirs.items()}), tmp_path / 'theirs.pth')
    command = [str(TOOLS / 'convert_checkpoint.py'), 'theirs.pth', 'ours.safetensors']
    done = run_forked(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert rows['direction'] == "the authors' names -> ours"
    assert (rows['dims'], rows['heads'], rows['depths'], rows['classes']) == ('16 32 48 64', '1 2 3 4', '1 1 2 1', '10')
    assert rows['img_size'] == '224 224'
    again = run_forked(command, cwd=tmp_path)
    assert again.returncode != 0
    assert (
        again.stderr
        == "error: the target 'ours.safetensors' exists already: name another, or replace it with --force\n"
    )
    ours = load_file(tmp_path / 'ours.safetensors')
    SOFTClassifier(MINI, num_classes=10).load_state_dict(
        ours | {n: torch.tensor(0) for n in SOFT(MINI).state_dict() if n.endswith('tracked')}
    )
    assert "our names -> the authors'" in convert(tmp_path / 'ours.safetensors', tmp_path / 'back.pth')
    assert same(torch.load(tmp_path / 'back.pth', weights_only=True), theirs)


def test_conversion_of_parts_and_of_detectors(theirs, tmp_path):
    torch.save(theirs, tmp_path / 'theirs.pth')
    convert(tmp_path / 'theirs.pth', tmp_path / 'backbone.pth', part='backbone')
    backbone = load(tmp_path / 'backbone.pth')
    assert not any(name.startswith(('head', 'cls')) for name in backbone)
    assert all(value.untyped_storage().nbytes() == value.nbytes for value in backbone.values())  # no views of more
    weights = trained(SOFT(MINI))
    inside = {f'backbone.{name}': value for name, value in weights.items()}
    torch.save(dict(state_dict=inside | {'neck.weight': torch.ones(2)}, meta={}), tmp_path / 'det.pth')
    assert "1 tensors outside of the authors' model are left out" in convert(
        tmp_path / 'det.pth', tmp_path / 'det_theirs.pth'
    )
    assert same(load(tmp_path / 'det_theirs.pth'), weights)
    torch.save({'conv1.weight': torch.zeros(2)}, tmp_path / 'resnet.pth')
    save_file(SOFTClassifier(MINI, img_size=(96, 128)).state_dict(), tmp_path / 'wide.safetensors')
    odd = dict(weights) | {'stages.0.extra': torch.zeros(1)}
    torch.save(odd, tmp_path / 'odd.pth')
    two = dict(theirs, pos_embed1=torch.cat((torch.zeros(1, 1, 16), theirs['pos_embed1']), 1))
    torch.save(two, tmp_path / 'two.pth')
    torch.save(dict(theirs, pos_embed2=torch.ones(4)), tmp_path / 'flat.pth')
    before = sorted(tmp_path.iterdir())
    for source, target, options, message in (
        ('resnet.pth', 'x.pth', {}, r"neither the authors' names .* nor ours .* first name is 'conv1\.weight'"),
        ('wide.safetensors', 'x.pth', {}, r'tables only; stages\.0\.position\.table has the shape \(1, 24, 32, 16\)'),
        ('odd.pth', 'x.pth', {}, r'unexpected +1 [^\n]+\n +stages\.0\.extra'),
        ('flat.pth', 'x.pth', {}, r'pos_embed2 must have the shape \(1, entries, channels\); got \(4,\)'),
        ('two.pth', 'x.pth', {}, r'two\.pth. do not translate back'),
        ('backbone.pth', 'x.pth', dict(part='classifier'), r'no cls_token, cls_position, head;'),
        ('theirs.pth', 'x.bin', {}, r"must end in \.pth or \.safetensors; got .*x\.bin"),
        ('theirs.pth', 'no/x.pth', {}, r"folder .*no' of the target does not exist"),
        ('none.pth', 'x.pth', {}, r"none\.pth' does not exist"),
        ('', 'x.pth', {}, r'is a folder'),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=message):
            convert(tmp_path / source, tmp_path / target, **options)
    assert sorted(tmp_path.iterdir()) == before


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves files as the hub does, and ``cut-*`` files but for their last byte."""

    looked_at: ClassVar = []

    def do_HEAD(self):
        self.looked_at.append(self.path)
        super().do_HEAD()

    def end_headers(self):
        self.send_header('X-Repo-Commit', 40 * 'a')
        self.send_header('ETag', f'"{hashlib.sha256(self.path.encode()).hexdigest()}"')
        super().end_headers()

    def copyfile(self, source, outputfile):
        content = source.read()
        outputfile.write(content[:-1] if 'cut-' in self.path else content)


@contextmanager
def served(folder):
    handler = functools.partial(Server, directory=folder)
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


def test_a_download_that_was_cut_is_no_file(theirs, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    (tmp_path / 'www').mkdir()
    torch.save(theirs, tmp_path / 'www' / 'cut-soft.pth')
    with served(tmp_path / 'www') as base:
        with pytest.raises(CheckpointError, match=r'cut-soft\.pth cannot be fetched: the connection was cut after'):
            load(f'{base}/cut-soft.pth')
        assert [path for path in (tmp_path / 'hub').rglob('*') if path.is_file()] == []
        torch.save(theirs, tmp_path / 'www' / 'soft.pth')
        place = tmp_path / 'hub' / 'checkpoints' / hashlib.sha256(f'{base}/soft.pth'.encode()).hexdigest()[:8]
        place.mkdir(parents=True)
        (place / 'soft.pth.0123.part').write_bytes(b'what a kill left')
        weights = load(f'{base}/soft.pth')
    assert same(weights, to_ours(theirs))
    assert (place / 'soft.pth').is_file()


def test_a_hash_in_a_local_name_is_checked(theirs, tmp_path):
    torch.save(theirs, tmp_path / 'soft.pth')
    digest = hashlib.sha256((tmp_path / 'soft.pth').read_bytes()).hexdigest()
    for name in (f'a-{digest[:8]}.pth', f'a-{digest}.pth', 'a-20260101.pth', 'a_0123abcd.pth', 'a-0123abcd.x.pth'):
        (tmp_path / 'soft.pth').replace(tmp_path / name)
        assert len(load(tmp_path / name)) == len(theirs) + 1
        (tmp_path / name).replace(tmp_path / 'soft.pth')
    (tmp_path / 'soft.pth').replace(tmp_path / 'a-0123abcd.pth')
    with pytest.raises(CheckpointError, match=f'promises sha256 0123abcd, found {digest[:8]}; remove it and fetch it'):
        load_pretrained(SOFT(MINI), str(tmp_path / 'a-0123abcd.pth'))


# In a process of its own: the hub's library reads its address and its cache when it is imported.
HUB = """
import sys
from mmsoft.checkpoints import load
for source in sys.argv[1:]:
    try:
        print(len(load(source)))
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_models_of_the_hub(theirs, tmp_path, monkeypatch):
    folder = tmp_path / 'www' / 'some-one' / 'soft.v1' / 'resolve' / 'main'
    folder.mkdir(parents=True)
    save_file(theirs, folder / 'model.safetensors')
    save_file(theirs, folder / 'wrong-0123abcd.safetensors')
    monkeypatch.setenv('HF_HOME', str(tmp_path / 'home'))

    def loads(*names, offline=False):
        monkeypatch.setenv('HF_HUB_OFFLINE', str(int(offline)))
        done = subprocess.run([sys.executable, '-c', HUB, *names], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    Server.looked_at.clear()
    with served(tmp_path / 'www') as base:
        monkeypatch.setenv('HF_ENDPOINT', base)
        full, bare, missing, wrong = loads(
            'hf-hub:some-one/soft.v1/model.safetensors',
            'some-one/soft.v1',
            'hf-hub:some-one/soft.v1/none.pth',
            'hf-hub:some-one/soft.v1/wrong-0123abcd.safetensors',
        )
    assert full == bare == str(len(theirs) + 1)
    assert missing.startswith(f'CheckpointError {base}/some-one/soft.v1/resolve/main/none.pth cannot be fetched: ')
    assert 'promises sha256 0123abcd' in wrong
    assert Server.looked_at.count('/some-one/soft.v1/resolve/main/model.safetensors') == 1
    cached, other = loads('some-one/soft.v1', 'some-one/else', offline=True)  # nobody serves it any more
    assert cached == full
    assert f'{base}/some-one/else/resolve/main/model.safetensors cannot be fetched: ' in other
    assert 'download it and give its path' in other


def test_what_is_remote(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'here' / 'now').mkdir(parents=True)
    for source in ('https://host/a.pth', 'hf-hub:a/b', 'hf-hub:a/b/c/d.pth', 'owner/repo', 'owner/soft_pp.v1'):
        assert sources.is_remote(source), source
    for source in (
        'pretrained/soft_pp_tiny.pth',
        'here/now',
        './a/b',
        '../a',
        '/a/b',
        '~/a',
        'a/b/c',
        'a.pth',
        Path('a/b'),
    ):
        assert not sources.is_remote(source), source
    init = dict(type='Pretrained', checkpoint='hf-hub:owner/repo')
    check_pretrained(Config(dict(model=dict(backbone=dict(type='mmsoft.SOFT', init_cfg=init)))))
    for wrong in ('http://a b/c.pth', 'hf-hub:a/b..c'):
        with pytest.raises(CheckpointError, match=f'{wrong}.* cannot be fetched: .*; download it and give its path'):
            load(wrong)
    with pytest.raises(CheckpointError, match="'hf-hub:owner' is no hub id: it is hf-hub:owner/repo"):
        load('hf-hub:owner')


@pytest.fixture(scope='module')
def real(tmp_path_factory):
    """A config, and the work directory of a short training and a test with it."""
    folder = tmp_path_factory.mktemp('run')
    config = dump(small_config('retinanet', folder / 'data', train=4, epochs=1), folder, 'my_net')
    run('train', config, '--work-dir', folder / 'work')
    run('test', config, folder / 'work' / 'epoch_1.pth')  # its metrics lie beside it
    return config, folder / 'work'


@pytest.mark.slow
def test_a_published_training_serves_wherever_weights_do(real, tmp_path):
    config, work = real
    first = run('publish_checkpoint', work / 'epoch_1.pth', '--out-dir', tmp_path / 'a')
    publish(work / 'epoch_1.pth', out_dir=tmp_path / 'b')
    names = sorted(path.name for path in (tmp_path / 'a').iterdir())
    assert names == sorted(path.name for path in (tmp_path / 'b').iterdir())
    assert all((tmp_path / 'a' / name).read_bytes() == (tmp_path / 'b' / name).read_bytes() for name in names)
    assert all(str(tmp_path / 'a' / name) in first.stdout for name in names)
    card = json.loads((tmp_path / 'a' / 'my_net.json').read_text())
    assert 'work/' not in card['config']
    for name, entry in card['files'].items():
        content = (tmp_path / 'a' / name).read_bytes()
        assert entry == dict(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
        assert name.startswith(f'my_net-{entry["sha256"][:8]}')
        assert str(work.parent).encode() not in content
    assert str(work.parent) not in json.dumps(card)
    assert card['architecture']['dims'] == list(MINI['dims'])
    assert (card['architecture']['model'], card['architecture']['attn']) == ('RetinaNet', 'soft_pp')
    assert (card['epoch'], card['seed'], card['data']['train']) == (1, 0, dict(type='CocoDataset', name='coco'))
    assert card['metrics'] == json.loads((work / 'metrics.json').read_text())['metrics']
    assert 'person' in card['classes']
    config_text = Config.fromstring(card['config'], '.py')
    assert config_text.data_root == 'coco'
    assert not any(ours in card['config'] for ours in ('faults.jsonl', 'ReadSafely', 'SeededDataset'))  # as written
    assert not {'work_dir', 'load_from', 'resume'} & set(config_text)
    assert config_text.train_dataloader.dataset.type == 'CocoDataset'  # without the wrappers of the run

    pth, safe = sorted((tmp_path / 'a' / name for name in card['files']), key=lambda path: path.suffix)
    content = torch.load(pth, weights_only=True)
    assert set(content) == {'meta', 'state_dict'}
    assert 'person' in content['meta']['dataset_meta']['classes']
    source = read_checkpoint(work / 'epoch_1.pth')['state_dict']
    assert equal(content['state_dict'], source)
    assert same(load(safe), source)
    run('test', config, safe, '--work-dir', tmp_path / 'tested')
    with_config = Predictor(safe)  # which the file carries, as it does the names
    assert with_config.meta['classes'] == Predictor(work / 'epoch_1.pth').meta['classes']
    assert with_config(np.zeros((64, 96, 3), np.uint8)).draw(score_thr=0).size == (96, 64)
    model = SOFT(MINI, init_cfg=dict(type='Pretrained', checkpoint=str(pth)))
    model.init_weights()
    assert torch.equal(model.norm.weight, source['backbone.norm.weight'])


@pytest.mark.slow
def test_averaged_weights_are_what_is_published_and_loaded(real, tmp_path):
    _, work = real
    checkpoint = read_checkpoint(work / 'epoch_1.pth', trust=True)
    averaged = {name: value + 1 for name, value in checkpoint['state_dict'].items()}
    checkpoint['state_dict_ema'] = averaged
    checkpoint['meta']['cfg'] = 'import os\n'
    torch.save(checkpoint, tmp_path / 'epoch_2.pth')
    (tmp_path / 'metrics.json').write_text(json.dumps(dict(checkpoint='/x/epoch_1.pth', metrics=dict(mAP=0.5))))
    said = publish(tmp_path / 'epoch_2.pth', name='ema', part='backbone')
    assert 'averaged over training' in said
    assert 'is of another checkpoint (epoch_1.pth): left out' in said
    assert 'config in the checkpoint is left out' in said
    (file,) = tmp_path.glob('ema-*.pth')
    assert equal(load(file), {n.removeprefix('backbone.'): v for n, v in averaged.items() if n.startswith('backbone.')})
    assert 'averaged over training' in publish(file, out_dir=tmp_path / 'again')
    assert [path.name for path in (tmp_path / 'again').glob('*.safetensors')] == [
        path.name for path in tmp_path.glob('ema-*.safetensors')
    ]
    publish(tmp_path / 'epoch_2.pth', name='chosen', metrics=tmp_path / 'metrics.json')
    assert json.loads((tmp_path / 'chosen.json').read_text())['metrics'] == dict(mAP=0.5)


class Toy(BaseModel):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(2, 2)

    def forward(self, *_, **__):
        return dict(loss=self.line.weight.sum())


@pytest.mark.parametrize('resuming', [False, True])
def test_a_resumed_run_goes_on_from_its_own_weights(tmp_path, resuming):
    runner = Runner(Toy(), str(tmp_path), default_scope='mmengine', experiment_name=f'choice_{resuming}')
    runner._resume = resuming
    own = runner.model.state_dict()
    checkpoint = dict(
        state_dict={name: torch.zeros_like(value) for name, value in own.items()},
        state_dict_ema={name: torch.ones_like(value) for name, value in own.items()},
        meta=dict(epoch=0, iter=0),
        optimizer={},
        message_hub=dict(runtime_info={}, resumed_keys={}, log_scalars={}),
    )
    torch.save(checkpoint, tmp_path / 'a.pth')
    runner.load_checkpoint(str(tmp_path / 'a.pth'))
    assert set(runner.model.line.weight.unique().tolist()) == {0.0 if resuming else 1.0}


def test_tests_are_kept_beside_the_run_that_was_tested(tmp_path):
    for name in ('epoch_1.pth', 'last_checkpoint'):
        assert run_folder(str(tmp_path / 'epoch_1.pth')) is None  # a file that was fetched
        (tmp_path / name).write_text('')
    assert run_folder(str(tmp_path / 'epoch_1.pth')) == str(tmp_path)
    assert run_folder('https://host/epoch_1.pth') is None


def test_mmengines_average_is_called_one(theirs, tmp_path):
    """Its hook saves the average as the state_dict, and the weights as trained beside it."""
    for extra, said in ((dict(), 'as trained'), (dict(ema_state_dict={}), 'averaged over training (EMA)')):
        torch.save(dict(state_dict=theirs, optimizer={}, **extra), tmp_path / 'epoch_1.pth')
        publish(tmp_path / 'epoch_1.pth', name=f'mine{len(extra)}')
        assert json.loads((tmp_path / f'mine{len(extra)}.json').read_text())['weights'] == said


def test_both_published_files_and_the_card_name_the_classes(theirs, tmp_path):
    """Under the name of older MMEngines as well; what is published again says the same."""
    names = ('cat', 'd\xf6g', 'sea "lion"')
    for key in ('classes', 'CLASSES'):
        meta = dict(epoch=1, dataset_meta={key: names})
        torch.save(dict(state_dict=to_ours(theirs), meta=meta), tmp_path / 'epoch_1.pth')
        publish(tmp_path / 'epoch_1.pth', name=key, out_dir=tmp_path / key)
        assert json.loads((tmp_path / key / f'{key}.json').read_text())['classes'] == list(names)
        (safe,), (pth,) = ((tmp_path / key).glob(f'*{suffix}') for suffix in ('.safetensors', '.pth'))
        for file in (safe, pth):
            assert list(read_checkpoint(file)['meta']['dataset_meta'][key]) == list(names)
            assert same(load(file), to_ours(theirs))
        publish(safe, name=key, out_dir=tmp_path / 'again')
        assert (tmp_path / 'again' / safe.name).read_bytes() == safe.read_bytes()


def test_publishing_a_bare_classifier_and_mistakes(theirs, tmp_path):
    torch.save(theirs, tmp_path / 'soft-tiny.pth')
    publish(tmp_path / 'soft-tiny.pth', part='classifier')
    card = json.loads((tmp_path / 'soft-tiny.json').read_text())
    assert (card['architecture']['num_classes'], card['architecture']['attn']) == (10, None)
    (file,) = tmp_path.glob('soft-tiny-*.safetensors')
    assert same(load(file), to_ours(theirs))
    for options, message in (
        (dict(part='backbone'), r"soft-tiny\.json' is the card of other weights: choose another --name"),
        (dict(name='a/b'), r"--name is a short name without folder and suffix; got 'a/b'"),
        (dict(name='a.pth'), r"got 'a\.pth'"),
        (dict(metrics=tmp_path / 'none.json'), r"none\.json' cannot be read: .*No such file"),
        (dict(metrics=file), r'cannot be read'),
    ):
        with pytest.raises(CheckpointError, match=message):
            publish(tmp_path / 'soft-tiny.pth', **options)


def test_of_paths_the_last_component_stays():
    for text, left in (
        ('/home/me/data/coco/', 'coco'),
        ('/home/my name/coco', 'coco'),
        ('~/runs/a', 'a'),
        ('../../me/ade', 'ade'),
        ('C:\\Users\\me\\coco', 'coco'),
        ('file:///home/me/x.pth', 'x.pth'),
        ('s3://bucket/me/x.pth', 'x.pth'),
        ('dir=/home/me/coco,out=/srv/x', 'dir=coco,out=x'),
        ('data/coco/', 'data/coco/'),
        ('https://host/a/b.pth', 'https://host/a/b.pth'),
        ('hf-hub:owner/repo', 'hf-hub:owner/repo'),
        ('and/or', 'and/or'),
        ('mmdet.CocoDataset', 'mmdet.CocoDataset'),
    ):
        assert _without_folders(text) == left


@pytest.fixture
def usual_depth():
    """Of recursion: torch's compiler leaves a larger one, with which deep configs can be read."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


def test_a_card_and_its_files_are_sound_whatever_the_checkpoint_says(tmp_path, usual_depth):
    """Texts that MMEngine, Python's parser or a disk does not take; numbers and halves of characters not in JSON."""
    weights = {'line.weight': torch.ones(2, 2)}
    configs = ['filename = 1', 'a = ' + 'dict(a=' * 85 + '1' + ')' * 85, 'train_dataloader = 3', 'a = 0x1' + '0' * 5000]
    configs.append("""a = {"b': 1, 'c": 2}""")  # a name that would be code in the text of the config
    for number, (text, name) in enumerate(
        zip(configs, ['../up', '..', 'a\0b', 'a' * 300, 'a\x1b[2J\udce9'], strict=True)
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        meta = dict(cfg=text, experiment_name=name, epoch=float('nan'), versions={'a\udce9': float('inf')})
        torch.save(dict(state_dict=weights, meta=meta), folder / 'source.pth')
        assert 'the config in the checkpoint is left out' in publish(folder / 'source.pth')
        assert {path.name.split('-')[0] for path in folder.iterdir()} == {'source', 'source.pth', 'source.json'}
        card = json.loads((folder / 'source.json').read_text(), parse_constant=pytest.fail)
        assert card['versions'] == {'a\\xe9': None}
        assert (card['epoch'], card['config']) == (None, None)
    for name in ('a\0b', 'a' * 300, '..', 'a/b', 'a.pth'):
        with pytest.raises(CheckpointError, match='--name is a short name without folder and suffix'):
            publish(folder / 'source.pth', name=name)


def test_equal_weights_give_equal_files():
    """Whatever the order in which the library of .safetensors writes its metadata, which is another each time."""
    weights = {f'{name}.weight': torch.arange(6.0).reshape(2, 3) for name in ('b', 'ä', 'a')}
    for suffix in ('.pth', '.safetensors'):
        assert len({to_bytes(weights, suffix) for _ in range(20)}) == 1
    (header,) = re.findall(rb'"__metadata__":(\{.*?\})', to_bytes(weights, '.safetensors'))
    assert list(json.loads(header)) == ['format', 'mmsoft.sha256']
    assert same(load_bytes(to_bytes(weights, '.safetensors')), weights)
