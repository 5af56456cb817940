"""The package itself: light imports, layers that look downward only, the version gate, an installed wheel."""

import ast
import re
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest
from forking import run_forked
from fresh_python import ALONE, fake, fake_distribution, python
from helpers import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mmsoft import versions

# A module imports from its own room and from rooms to the left of it.
ROOMS = [
    'mmcv_ops',
    'versions',
    'files',
    'memory',
    'deploy',
    'ops',
    'env',
    'layers',
    'weights',
    'models',
    'datasets',
    'checkpoints',
    'timm',
    'visualization',
    'engine',
    'distillation',
    'exporting',
    'cli',
    '__main__',
]
# These work without OpenMMLab; the others are made for it.
STANDALONE = ['ops', 'layers', 'weights', 'models', 'checkpoints']
# Modules of Python that Windows is without.
UNIX_ONLY = {'crypt', 'curses', 'fcntl', 'grp', 'nis', 'ossaudiodev', 'posix', 'pty', 'pwd', 'readline', 'resource'}
UNIX_ONLY |= {'spwd', 'syslog', 'termios', 'tty'}
# MMEngine's entry stands outside the order.
OUTSIDE = {'mmsoft/registry.py', 'mmsoft/models/register.py', 'mmsoft/__init__.py'}


def top_level_imports(tree):
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module


def imported_rooms(tree):
    """Rooms that a module imports from anywhere, inside functions as well; what it does as a command does not count."""
    tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and '__name__' in ast.unparse(node.test))]
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        if isinstance(node, ast.ImportFrom):
            names = [] if node.level == 1 else [f'{node.module}.{name}' for name in names]
            assert node.level < 2, 'what is of another room is imported by its full name'
        yield from (name.split('.')[1] for name in names if name.startswith('mmsoft.'))


def test_imports_go_downward():
    inside = 'def f():\n from mmsoft.engine.x import y\n from mmsoft import timm\n from .z import a\nimport mmsoft.ops'
    assert {*imported_rooms(ast.parse(inside))} == {'engine', 'timm', 'ops'}
    checked = 0
    for file in sorted((ROOT / 'mmsoft').rglob('*.py')):
        name = file.relative_to(ROOT).as_posix()
        if name in OUTSIDE:
            continue
        room, tree = file.relative_to(ROOT / 'mmsoft').parts[0].removesuffix('.py'), ast.parse(file.read_text())
        for imported in imported_rooms(tree):
            if imported != 'registry':
                assert ROOMS.index(imported) <= ROOMS.index(room), f'{name} imports {imported}'
                checked += 1
        if room in STANDALONE:
            for imported in top_level_imports(tree):
                assert imported.split('.')[0] not in {'mmengine', 'mmcv', 'mmdet', 'mmseg', 'timm'}, name
    assert checked > 10


def test_the_package_imports_modules_from_where_they_are():
    checked = 0
    for file in [*(ROOT / 'mmsoft').rglob('*.py'), *(ROOT / 'tools').rglob('*.py')]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith('mmsoft.'):
                place = ROOT.joinpath(*node.module.split('.'))
                assert place.is_dir() or place.with_suffix('.py').is_file(), f'{file}: {node.module} is a former name'
                checked += 1
    assert checked > 100


ASKED_BY_THE_DISPATCHER = {'is_compiling', 'is_tracing', 'is_exporting', 'is_scripting', 'is_grad_enabled', 'is_cuda'}
ASKED_BY_THE_DISPATCHER |= {'is_in_onnx_export', 'is_dynamo_compiling'}


def test_only_the_dispatchers_room_asks_for_devices_graphs_and_gradients():
    found = set()
    for file in (ROOT / 'mmsoft').rglob('*.py'):
        nodes = [*ast.walk(ast.parse(file.read_text()))]
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names |= {node.id for node in nodes if isinstance(node, ast.Name)}
        types = any(isinstance(n, ast.Attribute) and ast.unparse(n).endswith('.device.type') for n in nodes)
        if types or names & ASKED_BY_THE_DISPATCHER:
            found.add(file.relative_to(ROOT / 'mmsoft').parts[0])
    assert found == {'ops'}


def is_parents_constructor(node):
    return isinstance(node, ast.Call) and ast.unparse(node.func) == 'super().__init__'


def early_attributes(function):
    """What a constructor sets on itself before its parent's has run."""
    for statement in function.body:
        nodes = [*ast.walk(statement)]
        if any(map(is_parents_constructor, nodes)):
            return
        for node in nodes:
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == 'self'
            ):
                yield node.attr


def test_classes_have_one_parent_and_set_nothing_before_it():
    wrong = 'def __init__(self):\n x = 1\n self.a = x\n super().__init__()\n self.b = 2'
    assert [*early_attributes(ast.parse(wrong).body[0])] == ['a']
    checked = 0
    for file in [file for room in STANDALONE for file in (ROOT / 'mmsoft' / room).glob('*.py')]:
        for kind in [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)]:
            assert len(kind.bases) < 2, f'{file.name}: {kind.name}'
            for function in kind.body:
                if isinstance(function, ast.FunctionDef) and function.name == '__init__':
                    calls = any(map(is_parents_constructor, ast.walk(function)))
                    assert not calls or not [*early_attributes(function)], f'{file.name}: {kind.name}'
                    checked += calls
    assert checked > 20


def imports(node):
    """Modules that a tree imports anywhere, except for what an ``if`` on the platform or a ``try`` guards."""
    if isinstance(node, ast.Try) or (isinstance(node, ast.If) and 'platform' in ast.unparse(node.test)):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield node.module
    for child in ast.iter_child_nodes(node):
        yield from imports(child)


def test_what_windows_lacks_is_not_imported():
    guarded = 'if sys.platform == "linux":\n import pwd\ntry:\n import grp\nexcept ImportError:\n pass\n'
    assert [*imports(ast.parse(guarded + 'def f():\n from resource import x'))] == ['resource']
    for file in [*(ROOT / 'mmsoft').rglob('*.py'), *(ROOT / 'tools').rglob('*.py')]:
        found = {name.split('.')[0] for name in imports(ast.parse(file.read_text(encoding='utf-8')))}
        assert not found & UNIX_ONLY, file


@pytest.mark.slow
def test_importing_is_light():
    run = python('import mmsoft, sys; print(sorted({m.split(".")[0] for m in sys.modules} & {"torch", "mmengine"}))')
    assert run.stdout == '[]\n', run.stderr
    run = python('from mmsoft.deploy import load; import sys; print(sorted({"torch", "cv2"} & {*sys.modules}))')
    assert run.stdout == '[]\n', run.stderr
    run = python('import mmsoft; print(mmsoft.SOFT.__name__, callable(mmsoft.checkpoints.from_published)); mmsoft.SOTF')
    assert run.stdout == 'SOFT True\n'
    assert "no attribute 'SOTF'; it has SOFT, SOFTClassifier, InLinePVT, InLinePVTClassifier," in run.stderr
    heavy = '{"mmengine", "mmcv", "mmdet", "mmseg", "timm"}'
    run = python(
        'import sys, torch, mmsoft.models, mmsoft.checkpoints; mmsoft.models.SOFT("tiny"); '
        f'print(sorted({{m.split(".")[0] for m in sys.modules}} & {heavy}))'
    )
    assert run.stdout == '[]\n', run.stderr


def fake_torch(tmp_path):
    """What mmcv and mmdet need, without the seconds of importing the real ones."""
    for name, version in (('torch', '2.12.1'), ('torchvision', '0.27.1'), ('mmengine', '0.10.7')):
        fake(tmp_path, name, f'__version__ = {version!r}')


# An empty folder counts only where no real package is behind it: mmcv is what PYTHONPATH has of it, or nothing.
def refusal(name, path, before=''):
    """What the gate says about a library, with ``path`` in front of everything installed."""
    run = python(f'{before}\nfrom mmsoft.versions import require; require({name!r})', path=path)
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith('mmsoft.versions.StackError: '), run.stderr
    return last.removeprefix('mmsoft.versions.StackError: ')


def test_the_gate_says_what_is_missing_or_too_old(tmp_path, monkeypatch):
    versions.require(*versions.REQUIREMENTS)  # the tested set passes
    fake(tmp_path, 'mmengine', '__version__ = "0.7.4"')
    run = python('import mmsoft.registry', path=tmp_path)
    last = run.stderr.strip().splitlines()[-1]
    assert 'mmsoft needs mmengine >= 0.10.5, < 1.0, but mmengine 0.7.4 is too old; mend it with `pip install "' in last
    fake(tmp_path, 'torch', '__version__ = "2.5.1"')
    last = python('import mmsoft.models', path=tmp_path).stderr.strip().splitlines()[-1]
    assert 'needs torch >= 2.6, but torch 2.5.1 is too old; mend it with `pip install "torch>=2.6"`.' in last
    monkeypatch.setitem(versions.REQUIREMENTS, 'no_such_library', versions.Requirement('1.0', '', 'x', 'x'))
    with pytest.raises(versions.StackError, match='no_such_library is not installed; mend it with `pip install "x"`'):
        versions.require('no_such_library')
    monkeypatch.setitem(versions.REQUIREMENTS, 'numpy', versions.Requirement('0.1', '1.0', 'x', 'x'))
    with pytest.raises(versions.StackError, match='is too new'):
        versions.require('numpy')
    fake_torch(tmp_path)
    fake(tmp_path, 'timm', 'assert False, "not with this torch.\\nmore"')
    assert 'importing it fails: not with this torch; mend it with `pip install --force-r' in refusal('timm', tmp_path)
    fake(tmp_path, 'timm', 'import no_such_part')
    assert "No module named 'no_such_part'; mend it with `pip install" in refusal('timm', tmp_path)
    fake(tmp_path, 'cv2', 'raise ImportError("libGL.so.1: cannot open shared object file")')
    assert '-no-deps --no-cache-dir "opencv-python-headless<4.13"`.' in refusal('cv2', tmp_path)
    assert issubclass(versions.StackError, ImportError)


def test_a_torchvision_for_another_torch_is_named(tmp_path):
    fake(tmp_path, 'torch', '__version__ = "2.12.1"')
    fake(tmp_path, 'torchvision', 'import torch; __version__ = "0.21.0"')
    cure = 'mend it with `pip install --force-reinstall --no-deps --no-cache-dir "torchvision==0.27.*"`.'
    fake_distribution(tmp_path, 'torch', '2.12.1')
    assert refusal('torchvision', tmp_path) == (
        f'torchvision 0.21.0 is not made for torch 2.12.1, which needs torchvision 0.27; {cure}'
    )
    fake(tmp_path, 'torchvision', 'raise RuntimeError("operator torchvision::nms does not exist")')
    assert f'importing it fails: operator torchvision::nms does not exist; {cure}' in refusal('torchvision', tmp_path)
    # torchvision 0.29 is made for torch 2.14 and every newer one
    fake(tmp_path, 'torch', '__version__ = "2.15.0+cu132"')
    fake(tmp_path, 'torchvision', 'import torch; __version__ = "0.28.0"')
    assert 'made for torch 2.15.0+cu132, which needs torchvision >=0.29; ' in refusal('torchvision', tmp_path)
    fake(tmp_path, 'torchvision', 'import torch; __version__ = "0.29.2"')
    assert python('from mmsoft.versions import require; require("torchvision")', path=tmp_path).returncode == 0
    fake(tmp_path, 'torch', '__version__ = "2.12.1"')
    assert 'torchvision 0.29.2 is not made for torch 2.12.1' in refusal('torchvision', tmp_path)
    fake(tmp_path, 'torchvision', 'import torch; __version__ = "0.28.0.dev20260101"')
    assert python('from mmsoft.versions import require; require("torchvision")', path=tmp_path).returncode == 0
    pairs = {'2.6.0+cpu': '==0.21.*', '2.9.1': '==0.24.*', '2.12.1+cu130': '==0.27.*', '2.13.0': '==0.28.*', '3.0': ''}
    pairs |= {'2.14.1': '>=0.29', '2.15.0+cu132': '>=0.29'}
    assert {torch: versions.vision_for(torch) for torch in pairs} == pairs


def test_every_broken_mmcv_is_named_with_what_mends_it(tmp_path):
    fake_torch(tmp_path)
    folder = tmp_path / 'mmcv'
    folder.mkdir()
    left = 'but mmcv is only a folder without its modules, which an uninstall left behind; mend it with `pip install '
    assert left in refusal('mmcv', tmp_path, before=ALONE)
    (folder / '_ext.py').write_text('')  # ours, which --install wrote
    assert left in refusal('mmcv', tmp_path, before=ALONE)
    fake(tmp_path, 'mmcv', '__version__ = "2.0.1"')
    assert 'mmsoft needs mmcv >= 2.1.0, < 3.0, but mmcv 2.0.1 is too old; mend it' in refusal('mmcv', tmp_path)
    fake(tmp_path, 'mmcv', '__version__ = "2.2.0"')
    fake(tmp_path, 'mmcv/ops', 'from mmcv import _ext')
    for name in ('_ext.py', f'_ext{EXTENSION_SUFFIXES[0]}'):
        library = folder / name
        library.write_bytes(b'made for another torch')
        said = refusal('mmcv', tmp_path)
        assert 'the operators of mmcv 2.2.0 do not import' in said
        assert f'"{library}"`, and those of mmsoft take their place.' in said
        library.unlink()
    (folder / '_ext.py').write_text('')
    fake(tmp_path, 'mmdet', 'assert False, "MMCV==2.2.0 is used but incompatible. Please install mmcv>=2.0, <2.2.0."')
    fake_distribution(tmp_path, 'mmcv', '2.2.0')
    said = refusal('mmdet', tmp_path)
    assert 'MMCV==2.2.0 is used but incompatible.' in said
    assert 'mend it with `pip uninstall -y mmcv' in said


def specifications():
    """What pyproject.toml asks for, and what requirements.txt pins."""
    project = (ROOT / 'pyproject.toml').read_text().partition('[tool.')[0]
    asked = re.findall(r'"([\w.-]+(?:\[\w+\])?(?:[<>=~].*?)?)"[,\]]', project[project.index('dependencies = ') :])
    lines = (ROOT / 'requirements.txt').read_text().splitlines()
    return asked, [text for text in lines if text and not text.startswith('#')]


def test_the_pins_agree():
    """pyproject.toml is what counts: the gate's commands repeat it, and the tested set lies within it."""
    asked, tested = specifications()
    assert len(asked) > 20
    for requirement in versions.REQUIREMENTS.values():
        assert {requirement.onedl, requirement.original} <= set(asked)
    limits = {}
    for text in asked:
        limits.setdefault(canonicalize_name(Requirement(text).name), []).append(Requirement(text).specifier)
    for text in tested:
        pinned = Requirement(text)
        versions_within = [str(s.version) for s in pinned.specifier if s.operator in ('==', '>=')]
        for version in versions_within:
            assert all(limit.contains(version) for limit in limits[canonicalize_name(pinned.name)]), text
    pins = dict(text.split('==') for text in tested if '==' in text)
    assert Requirement(f'torchvision{versions.vision_for(pins["torch"])}').specifier.contains(pins['torchvision'])


@pytest.mark.slow
@pytest.mark.parametrize('tool', sorted(p.name for p in (ROOT / 'tools').glob('*.py')))
def test_every_tool_explains_itself(tool, tmp_path):
    run = run_forked([str(ROOT / 'tools' / tool), '--help'], cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert 'usage:' in run.stdout
    before_options = run.stdout.partition('\noptions:')[0]
    assert f'\nfor example: python tools/{tool} ' in before_options  # tests/test_docs.py looks at what follows


def make(*arguments):
    run = subprocess.run(['make', '-n', *arguments], cwd=ROOT, capture_output=True, text=True)
    return run.stdout + run.stderr


@pytest.mark.skipif(not shutil.which('make'), reason='make is not on every machine')
def test_make_chooses_what_is_asked_for(tmp_path, monkeypatch):
    for name in ('MAKEFLAGS', 'MAKEOVERRIDES', 'MFLAGS', 'STACK', 'TORCH', 'VENV'):  # of the make that runs the tests
        monkeypatch.delenv(name, raising=False)
    plan = make('test', f'VENV={tmp_path}')
    pins = dict(text.split('==') for text in specifications()[1] if '==' in text)
    assert f"'torch=={pins['torch']}' 'torchvision{versions.vision_for(pins['torch'])}'" in plan
    assert "-e '.[openmmlab,export,deploy,serve,openvino,docs,dev]'" in plan
    plan = make('-B', 'test', 'STACK=classic', 'TORCH=2.6.0')
    assert (
        "'torch==2.6.0' 'torchvision==0.21.*' -e '.[openmmlab-original,export,deploy,serve,openvino,docs,dev]'" in plan
    )
    assert '.venv-original-torch2.6.0/bin/python -m pytest' in plan
    run = subprocess.run(['make', 'install', 'STACK=new', f'VENV={tmp_path}'], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode
    assert 'STACK is onedl or original; got new' in run.stderr
    plan = make('test', 'TORCH=2.15.0', f'VENV={tmp_path}')
    assert "'torch==2.15.0' 'torchvision>=0.29'" in plan
    for wrong, said in (
        ('STACK=', 'STACK is onedl or original; got nothing'),
        ('TORCH=2.5.1', 'TORCH is 2.6.0 or newer, such as 2.12.1; got 2.5.1'),
        ('TORCH=new', 'got new'),
        (f'VENV={tmp_path}/two words', f'VENV is a directory without blanks in its name; got {tmp_path}/two words'),
    ):
        run = subprocess.run(
            ['make', 'install', f'VENV={tmp_path}/none', wrong], cwd=ROOT, capture_output=True, text=True
        )
        assert run.returncode
        assert said in run.stderr
    old = tmp_path / 'python'
    pretend = 'import sys; sys.version_info = (3, 9, 18); exec(sys.argv[2])'
    old.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{pretend}' \"$@\"\n")
    old.chmod(0o755)
    run = subprocess.run(
        ['make', 'install', f'VENV={tmp_path}/none', f'PYTHON={old}'], cwd=ROOT, capture_output=True, text=True
    )
    assert f'mmsoft needs Python 3.10 to 3.13, and {old} is 3.9; name another with PYTHON=' in run.stderr
    assert not (tmp_path / 'none').exists()
    (tmp_path / '.stamp-original').touch()
    run = subprocess.run(['make', 'install', f'VENV={tmp_path}'], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode
    assert 'holds another set of libraries' in run.stderr
