"""Files of strangers: whatever they hold, no code of theirs runs, and nothing crashes."""

import pickle
import subprocess
import sys
import zipfile
from argparse import Namespace
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel

from mmsoft.checkpoints import CheckpointError, read_checkpoint
from mmsoft.checkpoints.meta import KNOWN
from mmsoft.engine.runner import Runner


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
    content['meta'] |= dict(config=code, cfg=code, other=code, mmsoft=dict(lr=0.1, classes=['a'], name='b'))
    torch.save(content, 'hostile.pth')
    resumed = runner(tmp_path, 'resumed', max_epochs=2, resume=True, load_from='hostile.pth')
    seen = []
    monkeypatch.setattr(resumed, 'call_hook', lambda name, **kwargs: seen.append(kwargs.get('checkpoint')))
    resumed.load_or_resume()
    (checkpoint,) = filter(None, seen)
    assert set(checkpoint['meta']) <= set(KNOWN)
    assert checkpoint['meta']['mmsoft'] == dict(lr=0.1, classes=['a'], name='b')
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


def archive(path, pickled, storages=(), compression=zipfile.ZIP_STORED):
    """A file as torch writes it, around any pickle."""
    with zipfile.ZipFile(path, 'w', compression) as file:
        file.writestr('a/data.pkl', pickled)
        for key, content in enumerate(storages):
            file.writestr(f'a/data/{key}', content)
    return path


def everything():
    """What real files are made of."""
    weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    history = HistoryBuffer([1.0, 2.0], [1, 1])
    return dict(
        state_dict=torch.nn.Sequential(torch.nn.BatchNorm2d(3)).state_dict(),
        parameter=weight,
        optimizer=optimizer.state_dict(),
        views=[weight.detach().t()[1:, ::2], weight.detach()[2, 3], torch.arange(3).expand(1, 3), torch.zeros(0, 4)],
        dtypes=[torch.ones(2, 2).to(kind) for kind in KINDS] + [torch.float16],
        counter=Counter({3: 1, 5: 2}),
        groups=defaultdict(list, a=[1]),
        arrays=[np.arange(6.0).reshape(2, 3).T, np.array([True]), np.zeros((0, 2), np.float32), np.ones(3, np.int16)],
        numbers=[np.float32(0.5), np.int64(7), np.bool_(True), 2**80, -1, 1.5, True, None, complex(1, 2), float('inf')],
        texts=['ä', b'\xff\x00', b'', bytearray(b'ab'), slice(1, None)],
        sets=[{1, 'a'}, frozenset({2}), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), torch.Size([2, 3])],
        skipped=dict(args=Namespace(lr=0.1), path=Path('runs'), history=history, device=torch.device('cpu')),
        **{f'{name}\n': name for name in ('long', 'names')},
    )


KINDS = [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.uint16, torch.float64, torch.int8]


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
    first, second = found['views'][:2]
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()  # they share it again


class Call:
    """Pickled as a call, with a state to be set on what it gives."""

    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


def pid(count=4, key='0', kind=b'ctorch\nFloatStorage\n'):
    """A pickle of one storage."""
    (text,) = [pickle.dumps(part, 2)[2:-1] for part in [key]]
    return b'(X\7\0\0\0storage' + kind + text + b'X\3\0\0\0cpu' + pickle.dumps(count, 2)[2:-1] + b'tQ'


def tensor(size, stride, offset=0, **storage):
    numbers = b''.join(pickle.dumps(part, 2)[2:-1] for part in (offset, size, stride))
    return b'\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(' + pid(**storage) + numbers + b'\x89)tR.'


TEXT = b'X\x40\x42\x0f\0' + b'a' * 1_000_000  # of a million letters
# name -> pickle that would take memory, change what all share, or end the process, and what is said of it
ATTACKS = {
    'dtype of objects': (pickle.dumps(np.array([1, 'a'], object), 2), "an array of 'O8', not of numbers"),
    'forged dtype': (
        pickle.dumps(Call(np.dtype, ('f8', False, True), (3, '|', 'O', None, ('a',), 8, 8, 63)), 2),
        'little-endian',
    ),
    'attribute of a class': (b'\x80\x02ccollections\nCounter\n(N}X\5\0\0\0totalK\1stb.', 'sets the state of a Maker'),
    'attribute of an object': (b'\x80\x02ccollections\nCounter\n)R(N}X\5\0\0\0totalK\1stb.', 'state of a Counter'),
    'bytearray': (b'\x80\x02cbuiltins\nbytearray\n\x8a\5\0\xe4\x0b\x54\2\x85R.', 'of a int, not of a bytes'),
    'deep key': (b'\x80\x02})' + b'\x85' * 300_000 + b'Ns.', 'a tuple as a key'),
    'deep tuple called': (b'\x80\x02)' + b'\x85' * 300_000 + b')R.', 'calls a tuple'),
    'doubling list called': (b'\x80\x02]q\0' + b'(h\0h\0lq\0' * 60 + b')R.', 'calls a list'),
    'encoded again': (b'\x80\x02' + TEXT + b'q\1' + b'c_codecs\nencode\n(h\1X\6\0\0\0latin1tR' * 999 + b'.', 'memory'),
    'other codec': (b'\x80\x02c_codecs\nencode\n(X\1\0\0\0aX\3\0\0\0hextR.', 'what are no bytes'),
    'sets': (b'\x80\x04' + b'\x8f' * 500_000 + b'.', 'memory'),
    'copied tuple': (b'\x80\x02(' + b'K\1' * 99999 + b'tq\1' + b'cbuiltins\nset\nh\1\x85R' * 999 + b'.', 'memory'),
    'long bytes': (b'\x80\x04\x8e' + b'\xff' * 7 + b'\x00ab.', 'remain|read|bytes|memory'),
    'beyond the record': (tensor((2**33,), (1,), count=2**33), "no storage '0' of 34359738368 bytes"),
    'beyond the storage': (tensor((5,), (1,)), r'shape \(5,\) in a storage of 4 numbers'),
    'behind the storage': (tensor((4,), (1,), offset=1), 'in a storage of 4 numbers'),
    'steps of nothing': (tensor((10**10,), (0,)), 'in a storage of 4 numbers'),
    'steps back': (tensor((2, 2), (-1, 1)), 'sizes and strides'),
    'sizes that overflow': (tensor((0, 2**47, 2**47, 2**47), (1, 1, 1, 1)), 'in a storage of 4 numbers'),
    'another storage': (tensor((4,), (1,), key='../1'), r"no storage '\.\./1'"),
    'storage of the wrong kind': (tensor((4,), (1,), kind=b'ccollections\nOrderedDict\n'), 'a form that torch does'),
    'tensor on its own': (b'\x80\x02ctorch\nFloatTensor\n\x8a\5\0\xe4\x0b\x54\2\x85R.', r'holds torch\.FloatTensor'),
    'many views': (
        b'\x80\x02' + (tensor((2**18,), (1,), count=2**18, key='1')[2:-1] + b'0') * 99 + b'N.',
        'share storages',
    ),
    'module': (b'\x80\x02(X\6\0\0\0moduleNNNNtQ.', 'other things than storages'),
    'method': (b'\x80\x02cbuiltins\ngetattr\n(ccollections\nCounter\nX\6\0\0\0updatetR.', r'builtins\.getattr'),
    'escapes': (b'\x80\x02cos\x1b[31m\nsystem\n.', r'os\\x1b\[31m\.system'),
}


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
import test_trust as t
from mmsoft.checkpoints import CheckpointError, archives, pickles, read_checkpoint

shared = [Counter, OrderedDict, np.ndarray, np.dtype, torch.Tensor, torch.Size, torch.dtype, torch.UntypedStorage]
ours = [kind for module in (pickles, archives) for kind in vars(module).values() if callable(kind)]
shared += [kind for kind in ours if hasattr(kind, '__dict__')]
state = lambda: [{key: id(value) for key, value in vars(kind).items()} for kind in shared]
folder, random = Path(sys.argv[2]), random.Random(int(sys.argv[3]))
torch.save(t.everything(), folder / 'old.pth', _use_new_zipfile_serialization=False)
torch.save(t.everything(), folder / 'new.pth')
with zipfile.ZipFile(folder / 'new.pth') as whole, zipfile.ZipFile(folder / 'rest.zip', 'w') as rest:
    for entry in whole.infolist():
        if not entry.filename.endswith('data.pkl'):
            rest.writestr(entry.filename, whole.read(entry))
    pickled = whole.read('new/data.pkl')
old, before = (folder / 'old.pth').read_bytes(), state()
pieces = [text[2:-1] for text, _ in t.ATTACKS.values() if len(text) < 500]
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


def test_mutated_pickles_are_read_or_refused(tmp_path):
    folder = Path(__file__).parent
    arguments = [sys.executable, '-c', FUZZ, str(folder), str(tmp_path), '0', '2400']
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    read, refused, peak = map(int, done.stdout.split()[-3:])
    assert read + refused == 2400
    assert refused > 1000
    assert peak < 2000  # MiB, most of them for the libraries
