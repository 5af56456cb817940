"""Files of strangers: whatever they hold, no code of theirs runs, and nothing crashes."""

import contextlib
import os
import pickle
import re
import subprocess
import sys
import zipfile
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import ClassVar

import mmdet.models.backbones as mmdet_backbones
import mmengine
import mmseg.models.backbones as mmseg_backbones
import numpy as np
import pytest
import torch
import yaml
from helpers import MINI, ROOT, Golden
from hostile_files import ATTACKS, ODD, archive, everything
from mmdet.datasets import BaseDetDataset
from mmengine.config import Config, ConfigDict
from mmengine.dataset import BaseDataset
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel, BaseModule
from mmengine.runner import CheckpointLoader, load_checkpoint
from mmseg.models.losses.utils import get_class_weight
from safetensors.torch import save_file
from small_runs import dump, run, small_config

from mmsoft.checkpoints import CheckpointError, from_published, read_checkpoint
from mmsoft.engine import files
from mmsoft.engine.config import guard_files
from mmsoft.engine.runner import Runner
from mmsoft.models import SOFT
from mmsoft.weights import files as checkpoint_files
from mmsoft.weights.meta import KNOWN
from mmsoft.weights.writing import to_bytes


class Toy(BaseModel):
    def __init__(self, init_cfg=None):
        super().__init__(init_cfg=init_cfg)
        self.line = torch.nn.Linear(2, 2)

    def forward(self, *pictures, mode='loss'):
        return dict(loss=self.line(torch.stack(pictures)).square().mean())


def runner(work_dir, name, **options):
    return Runner(
        Toy(),
        str(work_dir),
        train_dataloader=dict(
            batch_size=2, dataset=list(torch.randn(4, 2)), sampler=dict(type='DefaultSampler', shuffle=False)
        ),
        train_cfg=dict(by_epoch=True, max_epochs=options.pop('max_epochs', 1)),
        optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-3)),
        param_scheduler=[dict(type='MultiStepLR', milestones=[1, 2])],
        default_scope='mmengine',
        experiment_name=name,
        **options,
    )


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A checkpoint that a training wrote."""
    folder = tmp_path_factory.mktemp('trained')
    runner(folder, 'trained').train()
    return folder / 'epoch_1.pth'


def test_resuming_runs_no_config_of_the_checkpoint(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = read_checkpoint(trained, trust=True)
    code = "__import__('pathlib').Path('ran').touch()\n"
    content['meta'] |= dict(config=code, cfg=code, other=code)
    torch.save(content, 'hostile.pth')
    resumed = runner(tmp_path, 'resumed', max_epochs=2, resume=True, load_from='hostile.pth')
    seen = []
    monkeypatch.setattr(resumed, 'call_hook', lambda name, **kwargs: seen.append(kwargs.get('checkpoint')))
    resumed.load_or_resume()
    (checkpoint,) = filter(None, seen)
    assert set(checkpoint['meta']) <= set(KNOWN)
    assert checkpoint['meta']['mmsoft'] == dict(done=0, processes=1, epoch_length=2, samples=4, config={})
    assert not (tmp_path / 'ran').exists()
    assert (resumed.epoch, resumed.iter) == (1, 2)
    for wrong, message in (
        (dict(epoch='1'), r'meta\.epoch is not made of plain values \(a str\)'),
        (dict(dataset_meta=dict(classes=[torch.zeros(1)])), r'meta\.dataset_meta is not made of plain values'),
        (dict(seed=[1]), r'meta\.seed'),
    ):
        torch.save(dict(content, meta=content['meta'] | wrong), 'wrong.pth')
        with pytest.raises(CheckpointError, match=message):
            runner(tmp_path, f'wrong_{next(iter(wrong))}', resume=True, load_from='wrong.pth').load_or_resume()
    torch.save(dict(content, meta=dict(iter=3)), 'wrong.pth')
    with pytest.raises(CheckpointError, match='its meta has no epoch'):
        runner(tmp_path, 'no_epoch', resume=True, load_from='wrong.pth').load_or_resume()


def assert_same(found, wanted):
    if isinstance(wanted, torch.Tensor):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        assert torch.equal(found.float(), wanted.float())
    elif isinstance(wanted, np.ndarray):
        assert (found.dtype, found.flags.writeable, found.tolist()) == (wanted.dtype, True, wanted.tolist())
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key, value in wanted.items():
            assert_same(found[key], value)
    elif isinstance(wanted, (list, tuple)):
        assert (type(found), len(found)) == (type(wanted), len(wanted))
        for mine, theirs in zip(found, wanted, strict=True):
            assert_same(mine, theirs)
    elif isinstance(wanted, (Namespace, Path, HistoryBuffer)):
        assert found == {}
    else:
        assert (type(found), found) == (type(wanted), wanted)


@pytest.mark.parametrize('zipped', [True, False])
@pytest.mark.parametrize('protocol', [2, 3, 4, 5])
def test_what_real_files_hold_is_read_as_it_was(tmp_path, zipped, protocol):
    content = everything()
    torch.save(content, tmp_path / 'a.pth', pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    found = read_checkpoint(tmp_path / 'a.pth')
    assert_same(found, content)
    assert type(found['counter']) is Counter
    assert found['state_dict']._metadata == content['state_dict']._metadata
    torch.save(found, tmp_path / 'again.pth')
    assert_same(read_checkpoint(tmp_path / 'again.pth'), content)
    first, second = found['views'][:2]
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()  # they share it again


@pytest.mark.parametrize('attack', ATTACKS)
def test_pickles_that_crash_or_fill_the_memory_are_refused(tmp_path, attack):
    pickled, message = ATTACKS[attack]
    archive(tmp_path / 'a.pth', pickled, [bytes(16), bytes(2**20)])
    before = dict(vars(Counter))
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(tmp_path / 'a.pth')
    assert dict(vars(Counter)) == before


FUZZ = """
import random, shutil, sys, zipfile
from collections import Counter, OrderedDict
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy as np, torch
from hostile_files import ATTACKS, everything
from mmsoft.checkpoints import CheckpointError, archives, pickles, read_checkpoint

shared = [Counter, OrderedDict, np.ndarray, np.dtype, torch.Tensor, torch.Size, torch.dtype, torch.UntypedStorage]
ours = [kind for module in (pickles, archives) for kind in vars(module).values() if callable(kind)]
shared += [kind for kind in ours if hasattr(kind, '__dict__')]
state = lambda: [{key: id(value) for key, value in vars(kind).items()} for kind in shared]
folder, random = Path(sys.argv[2]), random.Random(int(sys.argv[3]))
torch.save(everything(), folder / 'old.pth', _use_new_zipfile_serialization=False)
torch.save(everything(), folder / 'new.pth')
with zipfile.ZipFile(folder / 'new.pth') as whole, zipfile.ZipFile(folder / 'rest.zip', 'w') as rest:
    for entry in whole.infolist():
        if not entry.filename.endswith('data.pkl'):
            rest.writestr(entry.filename, whole.read(entry))
    pickled = whole.read('new/data.pkl')
old, before = (folder / 'old.pth').read_bytes(), state()
pieces = [text[2:-1] for text, _ in ATTACKS.values() if len(text) < 500]
steps = [bytes([number]) for number in range(256)]
ends = Counter()
for case in range(int(sys.argv[4])):
    text = bytearray(pickled if case % 4 else old)
    for _ in range(random.choice((1, 1, 2, 5, 20))):
        place = random.randrange(len(text))
        far = random.randrange(len(text))
        new = random.choice((random.choice(steps), random.choice(pieces), text[far:far + random.randrange(40)]))
        text[place:place + random.choice((0, 1, len(new)))] = new
    if case % 4:
        shutil.copyfile(folder / 'rest.zip', folder / 'c.pth')
        with zipfile.ZipFile(folder / 'c.pth', 'a') as file:
            file.writestr('new/data.pkl', bytes(text))
    else:
        (folder / 'c.pth').write_bytes(text)
    try:
        read_checkpoint(folder / 'c.pth')
        ends['read'] += 1
    except CheckpointError:
        ends['refused'] += 1
after = state()
assert after == before, [(kind, x.keys() ^ y.keys()) for kind, x, y in zip(shared, before, after) if x != y]
try:
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1 if sys.platform == 'darwin' else 1024) // 1024
except ImportError:  # Windows
    peak = 0
print(ends['read'], ends['refused'], peak)
"""


@pytest.mark.slow
def test_mutated_pickles_are_read_or_refused(tmp_path):
    folder = ROOT / 'tests' / 'support'
    arguments = [sys.executable, '-c', FUZZ, str(folder), str(tmp_path), '0', '2400']
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    read, refused, peak = map(int, done.stdout.split()[-3:])
    assert read + refused == 2400
    assert refused > 1000
    assert peak < 2000  # MiB, most of them for the libraries


class Bomb:
    def __reduce__(self):
        return os.mkdir, ('exploded',)


class Neck(BaseModule):
    def __init__(self, **init_cfg):
        super().__init__(dict(type='Pretrained', **init_cfg))
        self.line = torch.nn.Linear(2, 2)


class Annotations(BaseDataset):
    METAINFO: ClassVar = dict(classes=('a',))


def proposals(path):
    dataset = BaseDetDataset(ann_file='', lazy_init=True, proposal_file=path)
    dataset.data_list = []
    dataset.load_proposals()


SWIN = dict(embed_dims=4, depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1), window_size=2)
# Every road by which a config or an option names a file of weights or a pickle.
ROADS = {
    'init_cfg of the model': lambda path, _: Toy(dict(type='Pretrained', checkpoint=path)).init_weights(),
    'init_cfg of a part': lambda path, _: Wrapped(Neck(checkpoint=path)).init_weights(),
    'init_cfg with a prefix': lambda path, _: Neck(checkpoint=path, prefix='line.').init_weights(),
    'init_cfg of ours': lambda path, trust: SOFT(
        MINI, init_cfg=dict(type='Pretrained', checkpoint=path, **(dict(trust=True) if trust else {}))
    ).init_weights(),
    "init_cfg of mmdet's Swin": lambda path, _: mmdet_backbones.SwinTransformer(
        **SWIN, init_cfg=ConfigDict(type='Pretrained', checkpoint=path)
    ).init_weights(),
    "init_cfg of mmseg's Swin": lambda path, _: mmseg_backbones.SwinTransformer(
        **SWIN, init_cfg=ConfigDict(type='Pretrained', checkpoint=path)
    ).init_weights(),
    'a teacher': lambda path, _: load_checkpoint(Toy(), path, map_location='cpu'),
    'a published best checkpoint': lambda path, _: CheckpointLoader.load_checkpoint(path),
    'torchvision://': lambda path, _: CheckpointLoader.load_checkpoint('torchvision://evil'),
    'open-mmlab://': lambda path, _: CheckpointLoader.load_checkpoint('open-mmlab://evil'),
    'mmcls://': lambda path, _: CheckpointLoader.load_checkpoint('mmcls://evil'),
    'ann_file': lambda path, _: Annotations(ann_file=path),
    'proposal_file': lambda path, _: proposals(path),
    'class_weight': lambda path, _: get_class_weight(path),
    'a list of images': lambda path, _: mmengine.load(path, file_format='pkl'),
}


class Wrapped(BaseModule):
    def __init__(self, part):
        super().__init__()
        self.part = part


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """Files that explode, as ``evil.pth`` and ``evil.pkl``; afterwards nothing is trusted."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        files, '_MODEL_LISTS', dict.fromkeys(files._MODEL_LISTS, lambda: dict(evil=str(tmp_path / 'evil.pth')))
    )
    torch.save(dict(state_dict={'line.weight': torch.zeros(2, 2)}, bomb=Bomb()), 'evil.pth')
    Path('evil.pkl').write_bytes(pickle.dumps(dict(metainfo={}, data_list=[], bomb=Bomb())))
    yield tmp_path
    files.read_without_code()


@pytest.mark.parametrize('road', ROADS)
def test_no_road_to_a_file_runs_its_code(hostile, road):
    file = 'evil.pkl' if road in ('ann_file', 'proposal_file', 'class_weight', 'a list of images') else 'evil.pth'
    for trust in (False, True):
        files.read_without_code(trust)
        if trust:
            with contextlib.suppress(Exception):  # it is not what was wanted
                ROADS[road](file, trust)
        else:
            with pytest.raises(CheckpointError, match=r'refused: it holds \w+\.mkdir, which'):
                ROADS[road](file, trust)
        assert (hostile / 'exploded').exists() is trust


def test_every_loader_of_mmengine_is_ours(hostile):
    files.read_without_code()
    assert {loader.__name__ for loader in CheckpointLoader._schemes.values()} == {'load_from_mmsoft'}
    for source in ('s3://bucket/a.pth', 'petrel://a.pth', 'pavi://a.pth', 'cluster:s3://a.pth'):
        with pytest.raises(CheckpointError, match='copy the file and give its path'):
            CheckpointLoader.load_checkpoint(source)
    with pytest.raises(CheckpointError, match=r'names no known weights; torchvision:// has evil'):
        CheckpointLoader.load_checkpoint('torchvision://other')
    Path('a.yaml').write_text(
        '!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [exploded]]'
    )
    with pytest.raises(yaml.constructor.ConstructorError):
        Annotations(ann_file='a.yaml')
    assert not Path('exploded').exists()
    plain = dict(metainfo={}, data_list=[dict(boxes=np.ones((2, 4), np.float32), number=np.int64(3), file='a.png')])
    for protocol in range(6):
        Path('plain.pkl').write_bytes(pickle.dumps(plain, protocol))
        assert_same(mmengine.load('plain.pkl'), plain)
    torch.save(Toy().state_dict(), 'good.pth')
    model = Toy(dict(type='Pretrained', checkpoint='good.pth'))
    model.init_weights()
    assert torch.equal(model.line.weight, torch.load('good.pth')['line.weight'])


@pytest.mark.parametrize(
    ('part', 'message'),
    [
        (
            dict(type='mmdet.OpenImagesChallengeDataset'),
            'OpenImagesChallengeDataset reads its hierarchy file as a pickle',
        ),
        (dict(type='DODDataset'), 'DODDataset reads its annotations as a pickle'),
        (dict(type='LoadBiomedicalData', decode_backend='pickle'), 'LoadBiomedicalData reads its files as a pickle'),
    ],
)
def test_what_reads_pickles_by_itself_is_refused_unless_trusted(hostile, part, message):
    as_class = dict(part, type=type(part['type'].split('.')[-1], (), {}))  # as in configs that are Python
    for each in (part, as_class):
        cfg = Config(dict(train_dataloader=dict(dataset=dict(type='Wrapper', datasets=[each]))))
        with pytest.raises(CheckpointError, match=message):
            guard_files(cfg)
    guard_files(cfg, trust=True)


@pytest.mark.slow
def test_the_tools_start_no_part_of_a_model_from_code(hostile):
    cfg = small_config('retinanet', hostile / 'data', train=4, epochs=1)
    config = dump(cfg, hostile)
    options = ['model.neck.init_cfg.type=Pretrained', 'model.neck.init_cfg.checkpoint=evil.pth']
    done = run('train', config, '--work-dir', hostile / 'run', '--cfg-options', *options, check=False)
    assert re.search(r"^error: checkpoint 'evil.pth' is refused: it holds \w+\.mkdir, which", done.stderr, re.MULTILINE)
    assert not (hostile / 'exploded').exists()


def flip(path, content):
    """Change one bit in the middle of these bytes in a file."""
    whole = bytearray(path.read_bytes())
    place = whole.index(content) + len(content) // 2
    whole[place] ^= 4
    path.write_bytes(whole)


@pytest.mark.parametrize('trust', [False, True])
def test_a_bit_that_flipped_is_noticed(tmp_path, trust):
    weights = {'a': torch.randn(300, 30), 'b': torch.zeros(3, dtype=torch.bfloat16), 'c': torch.tensor(1)}
    for suffix in ('.pth', '.safetensors'):
        path = tmp_path / f'a{suffix}'
        path.write_bytes(to_bytes(weights, suffix))
        assert_same(dict(sorted(read_checkpoint(path, trust).items())), weights)
        flip(path, weights['a'].numpy().tobytes())
        with pytest.raises(CheckpointError, match=r'cannot be read: .*(CRC|damaged|not those that were)'):
            read_checkpoint(path, trust)
    save_file(weights, tmp_path / 'of_others.safetensors')  # no digest, no word
    assert set(read_checkpoint(tmp_path / 'of_others.safetensors')) == set(weights)
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(weights, tmp_path / 'without_crc.pth')
    finally:
        torch.serialization.set_crc32_options(True)
    assert_same(read_checkpoint(tmp_path / 'without_crc.pth', trust), weights)


def test_archives_that_promise_more_than_they_have_are_refused(tmp_path):
    pickled = pickle.dumps({}, 2)
    archive(tmp_path / 'small.pth', pickled, [bytes(10**7)], zipfile.ZIP_DEFLATED)
    assert (tmp_path / 'small.pth').stat().st_size < 20_000
    with pytest.raises(CheckpointError, match=r"entry 'a/data\.pkl' is compressed"):
        read_checkpoint(tmp_path / 'small.pth')
    archive(tmp_path / 'two.pth', pickled)
    with zipfile.ZipFile(tmp_path / 'two.pth', 'a') as file, pytest.warns(UserWarning, match='Duplicate'):
        file.writestr('a/data.pkl', pickled)
    with pytest.raises(CheckpointError, match='two entries of one name'):
        read_checkpoint(tmp_path / 'two.pth')
    content = bytearray(archive(tmp_path / 'large.pth', pickled, [bytes(99)]).read_bytes())
    place = content.index(b'PK\1\2', content.index(b'PK\1\2') + 1)
    content[place + 20 : place + 28] = 2 * (2**31).to_bytes(4, 'little')  # sizes in the archive's directory
    (tmp_path / 'large.pth').write_bytes(content)
    with pytest.raises(CheckpointError, match='larger than the file'):
        read_checkpoint(tmp_path / 'large.pth')
    torch.save(dict(a=torch.zeros(1000)), tmp_path / 'old.pth', _use_new_zipfile_serialization=False)
    content = (tmp_path / 'old.pth').read_bytes()
    (tmp_path / 'old.pth').write_bytes(content[:-100])
    with pytest.raises(CheckpointError, match=r'larger than the file|ends within'):
        read_checkpoint(tmp_path / 'old.pth')


def test_weights_that_are_not_finite_are_named_once(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(checkpoint_files, 'announce', lambda text, level: said.append(text))
    wrong = {f'wrong{i}': torch.tensor([1.0, float('nan'), float('-inf')][: i % 3 + 1]) for i in range(6)}
    wrong |= dict(good=torch.ones(2), half=torch.ones(1).half() / 0, few=torch.zeros(0), whole=torch.ones(1).int())
    torch.save(dict(state_dict=wrong, meta={}), tmp_path / 'a.pth')
    for _ in range(2):
        read_checkpoint(tmp_path / 'a.pth')
    assert said == [
        f'5 of 10 tensors in {str(tmp_path / "a.pth")!r} hold values that are not finite: wrong1, wrong2, wrong4, ...'
    ]


@pytest.mark.parametrize('resume', [False, True])
@pytest.mark.parametrize('kind', ODD)
def test_checkpoints_of_other_things_end_in_a_sentence(tmp_path, kind, resume):
    torch.save(ODD[kind], tmp_path / 'a.pth')
    if kind == 'message hub' and not resume:
        pytest.skip('only resuming looks at it')
    with pytest.raises(CheckpointError) as error:
        runner(tmp_path, f'odd_{kind}_{resume}', resume=resume, load_from=str(tmp_path / 'a.pth')).load_or_resume()
    assert '127.0.0.1' not in str(error.value)  # nothing was fetched
    assert '\x1b' not in str(error.value)


def test_data_that_holds_itself_or_doubles_is_refused(tmp_path):
    """Whoever walks through it would never come to an end."""
    own = []
    own.append(own)
    double = [[]]
    for _ in range(60):
        double = [double, double]
    deep = ()
    for _ in range(101):
        deep = (deep,)
    for content, message in ((own, 'holds itself'), (double, 'again and again'), (deep, 'nested more than 100 deep')):
        archive(tmp_path / 'a.pth', pickle.dumps(dict(meta=content), 2))
        with pytest.raises(CheckpointError, match=message):
            read_checkpoint(tmp_path / 'a.pth')


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_shapes_without_numbers_build_no_model(tmp_path, suffix):
    """A head for 2^40 classes in a file of kilobytes: whoever builds a model after its shapes has no memory left."""
    weights = Golden('soft_pp').weights
    many = torch.empty(0).as_strided((2**40, 0), (1, 1))
    path = tmp_path / f'a{suffix}'
    path.write_bytes(to_bytes(weights, suffix))
    assert from_published(path).num_classes == 10
    for name, value in (('head.weight', many), ('pos_embed1', many.reshape(1, 2**40, 0))):
        path.write_bytes(to_bytes(weights | {name: value}, suffix))
        with pytest.raises(CheckpointError, match=rf"'{name}' is of the shape .*1099511627776.*, but holds no numbers"):
            from_published(path)


@pytest.mark.parametrize(
    ('place', 'value', 'message'),
    [
        (('meta', 'iter'), 10**15, 'its meta.iter must be between 0 and'),
        (('meta', 'epoch'), -1, 'its meta.epoch must be between 0 and'),
        (('meta', 'iter'), 3, 'it is of iteration 3, and this run ends after 2'),
        (('optimizer', 'param_groups'), 3, 'its state is not that of this run'),
        (('optimizer', 'state', 0, 'step'), {}, 'its state is not that of this run'),
        (('param_schedulers',), None, 'its state is not that of this run'),
        (('message_hub', 'runtime_info'), 1.5, 'its message_hub is not what MMEngine writes'),
        (('buffers_of_ranks',), 1, 'its state is not that of this run'),
        (('gradients',), {'line.weight': 1}, 'its state is not that of this run'),
    ],
)
def test_a_state_that_no_run_wrote_ends_in_a_sentence(trained, tmp_path, place, value, message):
    content = read_checkpoint(trained)
    content['meta'].pop('mmsoft')
    node = content
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    torch.save(content, tmp_path / 'a.pth')
    resumed = runner(tmp_path, f'state_{place}_{value}', resume=True, load_from=str(tmp_path / 'a.pth'))
    with pytest.raises(CheckpointError, match=rf"a\.pth' cannot be resumed: .*{message}|{message}"):
        resumed.train()
