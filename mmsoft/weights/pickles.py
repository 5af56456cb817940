"""A reader of pickles that makes plain data, tensors and numeric arrays alone.

Python's decoder (pickletools) splits the stream into steps. Those that make plain data are done here, with objects
that are new to this reading; nothing is imported, no attribute is set that a file names, and memory is counted.
torch's weights-only reader takes names of a list as well, but calls what it finds with any arguments: 20 bytes make
a ``bytearray`` that fills the memory, and a deep tuple as a key ends the process.
"""

import pickletools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .messages import CheckpointError

FREE = 1 << 26  # bytes of memory that any stream may take
PER_BYTE = 64  # and these for each of its own
DEEPEST = 100  # containers within containers
# Bytes that a step takes, roughly; what is not here takes less than PER_BYTE for each of the step's own bytes.
_COSTS = dict(EMPTY_LIST=64, EMPTY_DICT=64, EMPTY_SET=224, FROZENSET=224, MARK=64, TUPLE=64, TUPLE1=64, TUPLE2=64)
_COSTS |= dict(TUPLE3=64, LIST=64, DICT=64, NEWOBJ=64, NEWOBJ_EX=64, REDUCE=512, BINPERSID=512)
_COSTS |= dict.fromkeys(('PUT', 'BINPUT', 'LONG_BINPUT', 'MEMOIZE'), 100)
# Steps whose argument is the value.
_VALUES = {'INT', 'BININT', 'BININT1', 'BININT2', 'LONG', 'LONG1', 'LONG4', 'FLOAT', 'BINFLOAT', 'STRING', 'BINSTRING'}
_VALUES |= {'SHORT_BINSTRING', 'UNICODE', 'SHORT_BINUNICODE', 'BINUNICODE', 'BINUNICODE8', 'BYTEARRAY8'}
_VALUES |= {'BINBYTES', 'SHORT_BINBYTES', 'BINBYTES8'}
_CONSTANTS = dict(NONE=None, NEWTRUE=True, NEWFALSE=False, EMPTY_TUPLE=())
_KEYS = (str, int, float, bool, bytes, type(None))


class Stream(Protocol):
    """What is read: a file, or bytes in memory."""

    def read(self, size: int, /) -> bytes: ...

    def readline(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Maker:
    """What a name in a pickle stands for: a function of ours, which takes no argument unchecked."""

    make: Callable[..., Any]


class Skipped(dict):
    """Stands empty for an object that trainers leave beside the weights, whatever it was made of."""


class Machine:
    """Does the steps of one stream of ``size`` bytes; ``storage`` makes a tensor's storage of its id."""

    def __init__(
        self, names: Mapping[tuple[str, str], Any], size: int, storage: Callable[[Any], Any] | None = None
    ) -> None:
        self.names, self.storage, self.size = names, storage, size
        self.left = FREE + PER_BYTE * size
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # stacks below marks
        self.memo: dict[int, Any] = {}

    def run(self, stream: Stream) -> Any:
        for opcode, argument, _ in pickletools.genops(stream):  # pyright: ignore[reportArgumentType]
            name = opcode.name
            if name in _COSTS:
                self.charge(_COSTS[name])
            if name in _VALUES:
                self.stack.append(argument)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name in _STEPS:
                _STEPS[name](self, argument)
            elif name == 'STOP':
                return self.checked(self.stack.pop())
            else:
                raise CheckpointError(f'its pickle has the step {name}, which makes no plain data')
        raise EOFError('its pickle has no end')

    def checked(self, value: Any) -> Any:
        """What was made, if those who walk through it come to an end."""
        if measure(value, {})[0] > 1_000_000 + self.size:  # each part that is not shared takes a byte
            raise ValueError('its data names the same parts again and again')
        return value

    def charge(self, cost: int) -> None:
        """Count memory before it is taken."""
        self.left -= cost
        if self.left < 0:
            raise ValueError(f'its pickle would take more than {PER_BYTE} times its own size of memory')

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.outer.pop()
        return items

    def mark(self, _: Any) -> None:
        self.outer.append(self.stack)
        self.stack = []

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError('its pickle takes from an empty stack')
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def keep(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is list:
            target.extend(items)
        elif type(target) is not Skipped:
            raise ValueError(f'its pickle appends to a {type(target).__name__}')

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) in (dict, OrderedDict, Counter):
            for key, value in zip(items[::2], items[1::2], strict=True):
                target[checked_key(key)] = value
        elif type(target) is not Skipped:
            raise ValueError(f'its pickle sets items of a {type(target).__name__}')

    def add_items(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not set:
            raise ValueError(f'its pickle adds to a {type(self.stack[-1]).__name__}')
        self.stack[-1].update(map(checked_key, items))

    def find(self, module: Any, name: Any) -> None:
        """Push what stands for a name."""
        if type(module) is not str or type(name) is not str:
            raise ValueError('its pickle names a class by what is no text')
        module = {'__builtin__': 'builtins'}.get(module, module)  # as old pickle protocols call it
        owner, dot, _ = name.partition('.')
        if dot and self.names.get((module, owner)) is SKIP:
            name = owner  # a method of what is skipped
        if (module, name) not in self.names:
            raise CheckpointError(f'it holds {ascii(f"{module}.{name}"[:100])[1:-1]}, which could run code')
        self.push(self.names[module, name])

    def call(self) -> None:
        arguments, maker = self.stack.pop(), self.stack.pop()
        if type(maker) is not Maker or type(arguments) is not tuple:
            raise CheckpointError(f'its pickle calls a {type(maker).__name__}')
        # what is made may copy what it is made of, which may be had from the memo again and again
        self.charge(sum(len(value) for value in arguments if isinstance(value, (str, bytes))))
        self.charge(128 * sum(len(value) for value in arguments if isinstance(value, (list, tuple, dict))))
        self.push(maker.make(*arguments))

    def new(self, arguments: int) -> None:
        """An object without its constructor: only of a class that is skipped."""
        del self.stack[-arguments:]
        if self.stack.pop() is not SKIP:
            raise CheckpointError('its pickle makes an object without its constructor')
        self.push(Skipped())

    def build(self, _: Any) -> None:
        """Give an object its state."""
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is OrderedDict and type(state) is dict:
            if '_metadata' in state:  # versions of modules, which MMEngine reads
                target._metadata = state['_metadata']  # pyright: ignore[reportAttributeAccessIssue]
        elif isinstance(target, np.dtype):
            _check_dtype(state)
        elif type(target) is np.ndarray:
            _fill(target, state, self.charge)
        elif type(target) is not Skipped:
            raise CheckpointError(f'its pickle sets the state of a {type(target).__name__}')

    def persist(self, _: Any) -> None:
        if self.storage is None:
            raise ValueError('its pickle refers to storages outside of it')
        self.push(self.storage(self.stack.pop()))


_STEPS: dict[str, Callable[[Machine, Any], Any]] = {
    'PROTO': lambda machine, _: None,
    'FRAME': lambda machine, _: None,
    'EMPTY_LIST': lambda machine, _: machine.push([]),
    'EMPTY_DICT': lambda machine, _: machine.push({}),
    'EMPTY_SET': lambda machine, _: machine.push(set()),
    'MARK': Machine.mark,
    'POP': lambda machine, _: machine.stack.pop() if machine.stack else machine.since_mark(),
    'POP_MARK': lambda machine, _: machine.since_mark(),
    'DUP': lambda machine, _: machine.push(machine.stack[-1]),
    'TUPLE': lambda machine, _: machine.push(tuple(machine.since_mark())),
    'TUPLE1': lambda machine, _: machine.tuple_of(1),
    'TUPLE2': lambda machine, _: machine.tuple_of(2),
    'TUPLE3': lambda machine, _: machine.tuple_of(3),
    'LIST': lambda machine, _: machine.push(machine.since_mark()),
    'DICT': lambda machine, _: _new_dict(machine, machine.since_mark()),
    'FROZENSET': lambda machine, _: machine.push(frozenset(map(checked_key, machine.since_mark()))),
    'APPEND': lambda machine, _: machine.extend([machine.stack.pop()]),
    'APPENDS': lambda machine, _: machine.extend(machine.since_mark()),
    'SETITEM': lambda machine, _: machine.set_items([machine.stack.pop(), machine.stack.pop()][::-1]),
    'SETITEMS': lambda machine, _: machine.set_items(machine.since_mark()),
    'ADDITEMS': lambda machine, _: machine.add_items(machine.since_mark()),
    'MEMOIZE': lambda machine, _: machine.keep(len(machine.memo)),
    **dict.fromkeys(('PUT', 'BINPUT', 'LONG_BINPUT'), Machine.keep),
    **dict.fromkeys(('GET', 'BINGET', 'LONG_BINGET'), lambda machine, index: machine.push(machine.memo[index])),
    'GLOBAL': lambda machine, names: machine.find(*names.split(' ', 1)),
    'STACK_GLOBAL': lambda machine, _: machine.find(*[machine.stack.pop(), machine.stack.pop()][::-1]),
    'REDUCE': lambda machine, _: machine.call(),
    'NEWOBJ': lambda machine, _: machine.new(1),
    'NEWOBJ_EX': lambda machine, _: machine.new(2),
    'BUILD': Machine.build,
    'BINPERSID': Machine.persist,
}


def measure(value: Any, known: dict[int, tuple[int, int]], depth: int = 0) -> tuple[int, int]:
    """How many parts a value has, counted wherever they are named, and how deep they are nested."""
    if not isinstance(value, (dict, list, tuple, set, frozenset)):
        return 1, 0
    if id(value) not in known:
        parts, count, height = [*value, *value.values()] if isinstance(value, dict) else value, 1, 0
        for part in parts if depth < DEEPEST else ():
            part_count, part_height = measure(part, known, depth + 1)
            count, height = count + part_count, max(height, part_height)
        if depth >= DEEPEST or height >= DEEPEST:
            raise ValueError(f'its data is nested more than {DEEPEST} deep, or holds itself')
        known[id(value)] = count, height + 1
    return known[id(value)]


def _new_dict(machine: Machine, items: list[Any]) -> None:
    machine.push({})
    machine.set_items(items)


def checked_key(key: Any) -> Any:
    """Of a dict or set. A deep tuple would overflow the stack of the interpreter when it is hashed."""
    for part in key if type(key) is tuple else (key,):
        if type(part) not in _KEYS and not isinstance(part, np.generic):
            raise ValueError(f'its pickle has a {type(part).__name__} as a key')
    return key


def _skip(*_: Any, **__: Any) -> Skipped:
    return Skipped()


SKIP = Maker(_skip)


def _attribute(owner: Any, _: Any) -> Maker:
    """A history buffer's methods are attributes of its class."""
    if owner is not SKIP:
        raise CheckpointError('it holds builtins.getattr, which could run code')
    return SKIP


def _encode(text: str, encoding: str) -> bytes:
    """Bytes, as old protocols write them."""
    if type(text) is not str or encoding not in ('latin1', 'latin-1'):
        raise CheckpointError('it holds _codecs.encode for what are no bytes')
    return text.encode('latin-1')


def _bytearray(content: Any = b'', encoding: str = 'latin-1') -> bytearray:
    return bytearray(_encode(content, encoding) if type(content) is str else _only(bytes, content))


def _only(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f'its pickle makes something of a {type(value).__name__}, not of a {kind.__name__}')
    return value


def _empty(kind: type) -> Maker:
    return Maker(lambda: kind())


def _set_of(kind: type) -> Maker:
    return Maker(lambda items=(): kind(map(checked_key, items if type(items) in (list, tuple) else _only(list, items))))


def _ordered(items: Iterable = ()) -> OrderedDict:
    found = OrderedDict()
    for key, value in items if items == () else _only(list, items):
        found[checked_key(key)] = value
    return found


def _of_atoms(kind: type) -> Maker:
    """Of numbers, texts and None."""
    return Maker(lambda *parts: kind(*checked_key(parts)))


def _dtype(code: Any, *_: Any) -> np.dtype:
    """The type of plain numbers."""
    found = np.dtype(code) if type(code) is str and len(code) <= 3 and code[:1] in tuple('biufc') else None
    if found is None or found.kind not in 'biufc':
        raise CheckpointError(f'it holds an array of {str(code)[:40]!a}, not of numbers')
    return found


def _check_dtype(state: Any) -> None:
    """Raise unless a state of numpy.dtype says nothing but this machine's order of bytes."""
    if type(state) is not tuple or len(state) < 8 or state[1] not in ('<', '|', '=') or any(state[2:5]):
        raise CheckpointError('it holds an array of other than numbers in little-endian order')


def _numbers(content: Any) -> bytes:
    return content.encode('latin-1') if type(content) is str else bytes(content)  # of Python 2


def _scalar(kind: Any, content: Any) -> np.generic:
    if not isinstance(kind, np.dtype) or type(content) not in (bytes, str) or len(content) != kind.itemsize:
        raise ValueError('it holds a NumPy number of another size than its type')
    return np.frombuffer(_numbers(content), kind)[0]


def _check_array(shape: Any, kind: Any, content: Any) -> None:
    if (
        type(shape) is not tuple
        or len(shape) > 32
        or not all(type(length) is int and 0 <= length < 1 << 48 for length in shape)
        or not isinstance(kind, np.dtype)
        or type(content) not in (bytes, bytearray, str)
        or len(content) != _product(shape) * kind.itemsize
    ):
        raise ValueError('it holds an array whose shape, type and content do not go together')


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def _fill(target: np.ndarray, state: Any, charge: Callable[[int], None]) -> None:
    """Give an array that was made empty its numbers, once."""
    if target.size or type(state) is not tuple or len(state) != 5 or type(state[3]) not in (bool, int):
        raise ValueError('it holds an array of another form than NumPy writes')
    _, shape, kind, fortran, content = state
    _check_array(shape, kind, content)
    charge(len(content))
    target.__setstate__((1, shape, kind, bool(fortran), _numbers(content)))  # pyright: ignore[reportArgumentType]


def _from_buffer(content: Any, kind: Any, shape: Any, order: Any) -> np.ndarray:
    _check_array(shape, kind, content)
    if order not in ('C', 'F'):
        raise ValueError('it holds an array of another form than NumPy writes')
    return np.frombuffer(_numbers(content), kind).reshape(shape, order=order).copy(order)


def _reconstruct(kind: Any, *_: Any) -> np.ndarray:
    if kind is not _NDARRAY:
        raise CheckpointError('it holds an array of a class of its own')
    return np.empty(0)


_NDARRAY = Maker(_skip)  # only ever an argument
_COUNTER = Maker(lambda counts=None: Counter(_only(dict, counts) if counts is not None else None))
PLAIN = {
    ('collections', 'OrderedDict'): Maker(_ordered),
    ('collections', 'defaultdict'): Maker(lambda factory=None: {}),
    ('collections', 'Counter'): _COUNTER,
    ('builtins', 'set'): _set_of(set),
    ('builtins', 'frozenset'): _set_of(frozenset),
    ('builtins', 'slice'): _of_atoms(slice),
    ('builtins', 'complex'): _of_atoms(complex),
    ('builtins', 'bytearray'): Maker(_bytearray),
    **{('builtins', kind.__name__): _empty(kind) for kind in (dict, list, int, float, bytes, str)},
    ('_codecs', 'encode'): Maker(_encode),
    ('numpy', 'ndarray'): _NDARRAY,
    ('numpy', 'dtype'): Maker(_dtype),
    **{
        (f'numpy.{core}.{module}', name): Maker(function)
        for core in ('core', '_core')
        for module, name, function in (
            ('multiarray', '_reconstruct', _reconstruct),
            ('multiarray', 'scalar', _scalar),
            ('numeric', '_frombuffer', _from_buffer),
        )
    },
}
# What trainers leave beside the weights.
SKIPPED = {
    ('mmengine.logging.history_buffer', 'HistoryBuffer'): SKIP,
    ('builtins', 'getattr'): Maker(_attribute),
    ('argparse', 'Namespace'): SKIP,
    ('types', 'SimpleNamespace'): SKIP,
    ('yacs.config', 'CfgNode'): SKIP,
    (Skipped.__module__, Skipped.__name__): SKIP,  # of what was read here and saved again
    # Python 3.13 alone has the second module
    **{
        (module, kind): SKIP
        for module in ('pathlib', 'pathlib._local')
        for kind in ('Path', 'PosixPath', 'WindowsPath')
    },
}
