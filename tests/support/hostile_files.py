"""What real files of weights hold, and what strangers put into theirs."""

import pickle
import zipfile
from argparse import Namespace
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import torch
from mmengine.logging import HistoryBuffer


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


ODD = {
    'text': 'https://127.0.0.1:9/a.pth',
    'number': 3,
    'tensor': torch.zeros(2),
    'nothing': None,
    'weights that are a number': dict(state_dict=3),
    'weights that are a text': dict(state_dict='https://127.0.0.1:9/a.pth', state_dict_ema='https://127.0.0.1:9/a.pth'),
    'names that are numbers': dict(state_dict={1: torch.zeros(2)}),
    'names with escapes': dict(state_dict={'\x1b[31mline': torch.zeros(2)}),
    'message hub': dict(state_dict={'line.weight': torch.zeros(2, 2)}, optimizer={}, message_hub=3, meta=dict(epoch=1)),
}
