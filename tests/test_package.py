"""The package itself: light imports, layers that look downward only, the version gate, an installed wheel."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmsoft import versions

ROOT = Path(__file__).parent.parent
# A module imports from its own room and from rooms to the left of it.
ROOMS = ['versions', 'ops', 'layers', 'models', 'datasets', 'checkpoints', 'timm', 'visualization', 'engine']
# These work without OpenMMLab; the others are made for it.
STANDALONE = ['ops', 'layers', 'models', 'checkpoints']
# Modules of Python that Windows is without.
UNIX_ONLY = {'crypt', 'curses', 'fcntl', 'grp', 'nis', 'ossaudiodev', 'posix', 'pty', 'pwd', 'readline', 'resource'}
UNIX_ONLY |= {'spwd', 'syslog', 'termios', 'tty'}
# MMEngine's entry stands outside the order.
OUTSIDE = {'mmsoft/registry.py', 'mmsoft/models/register.py', 'mmsoft/__init__.py'}


def python(code, *, cwd=None, path=None):
    environment = dict(os.environ, **({'PYTHONPATH': str(path)} if path else {}))
    return subprocess.run([sys.executable, '-c', code], cwd=cwd, env=environment, capture_output=True, text=True)


def top_level_imports(tree):
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module


def test_imports_go_downward():
    checked = 0
    for file in sorted((ROOT / 'mmsoft').rglob('*.py')):
        name = file.relative_to(ROOT).as_posix()
        if name in OUTSIDE:
            continue
        room = file.relative_to(ROOT / 'mmsoft').parts[0].removesuffix('.py')
        for imported in top_level_imports(ast.parse(file.read_text())):
            parts = imported.split('.')
            if parts[0] == 'mmsoft' and len(parts) > 1 and parts[1] != 'registry':
                assert ROOMS.index(parts[1]) <= ROOMS.index(room), f'{name} imports {imported}'
                checked += 1
            if room in STANDALONE:
                assert parts[0] not in {'mmengine', 'mmcv', 'mmdet', 'mmseg', 'timm'}, f'{name} imports {imported}'
    assert checked > 10


def imports(node):
    """Modules that a tree imports anywhere, but for what an ``if`` on the platform or a ``try`` guards."""
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
    for file in [*(ROOT / 'mmsoft').rglob('*.py'), *(ROOT / 'tools').glob('*.py')]:
        found = {name.split('.')[0] for name in imports(ast.parse(file.read_text(encoding='utf-8')))}
        assert not found & UNIX_ONLY, file


def test_importing_is_light():
    run = python('import mmsoft, sys; print(sorted({m.split(".")[0] for m in sys.modules} & {"torch", "mmengine"}))')
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


def fake(tmp_path, name, text):
    (tmp_path / name).mkdir()
    (tmp_path / name / '__init__.py').write_text(text)


def test_the_gate_says_what_is_missing_or_too_old(tmp_path, monkeypatch):
    versions.require(*versions.REQUIREMENTS)  # the tested stack passes
    fake(tmp_path, 'mmengine', '__version__ = "0.7.4"')
    run = python('import mmsoft.registry', path=tmp_path)
    last = run.stderr.strip().splitlines()[-1]
    assert 'mmsoft needs mmengine >= 0.10.5, < 1.0, but mmengine 0.7.4 is too old; install it with `pip install' in last
    fake(tmp_path, 'torch', '__version__ = "1.13.1"')
    last = python('import mmsoft.models', path=tmp_path).stderr.strip().splitlines()[-1]
    assert 'mmsoft needs torch >= 2.1, but torch 1.13.1 is too old; install it with `pip install torch==' in last
    monkeypatch.setitem(versions.REQUIREMENTS, 'no_such_library', versions.Requirement('1.0', '', 'x', 'x'))
    with pytest.raises(versions.StackError, match='no_such_library is not installed; install it with'):
        versions.require('no_such_library')
    monkeypatch.setitem(versions.REQUIREMENTS, 'numpy', versions.Requirement('0.1', '1.0', 'x', 'x'))
    with pytest.raises(versions.StackError, match='is too new'):
        versions.require('numpy')
    fake(tmp_path, 'mmdet', 'assert False, "MMCV==9 is used but incompatible"')
    code = 'from mmsoft.versions import require; require("mmdet")'
    assert 'importing it fails: MMCV==9 is used but incompatible' in python(code, path=tmp_path).stderr
    assert issubclass(versions.StackError, ImportError)


def test_an_installed_wheel_works_anywhere(tmp_path):
    """Built and installed for real; the checkout is neither the working directory nor on the path."""
    pip = [sys.executable, '-m', 'pip', '-q', '--disable-pip-version-check']
    source = tmp_path / 'source'
    files = subprocess.run(
        ['git', 'ls-files', '-co', '--exclude-standard'], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in files.stdout.split():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([*pip, 'wheel', source, '--no-deps', '--no-build-isolation', '-w', tmp_path], check=True)
    (wheel,) = tmp_path.glob('mmsoft-*.whl')
    subprocess.run([*pip, 'install', '--no-deps', '--target', tmp_path / 'site', wheel], check=True)
    site = tmp_path / 'site' / 'mmsoft'
    shipped = {p.relative_to(site).as_posix() for p in site.rglob('*') if p.is_file() and p.suffix != '.pyc'}
    tracked = {name.removeprefix('mmsoft/') for name in files.stdout.split() if name.startswith('mmsoft/')}
    assert tracked <= shipped
    configs = {f'.mim/{name}' for name in files.stdout.split() if name.startswith('configs/')}
    assert len(configs) > 24
    assert configs | {'.mim/tools/benchmark.py', '.mim/model-index.yml', 'py.typed'} <= shipped
    (tmp_path / 'elsewhere').mkdir()
    code = (
        'import mmsoft; print(mmsoft.__file__); from mmengine.config import Config; '
        'Config.fromfile(mmsoft.config_path("upernet_soft_pp_tiny_160k_ade20k")); '
        'from mmdet.registry import MODELS; import torch; '
        'print(len(MODELS.build(dict(type="mmsoft.SOFT", arch="tiny")).eval()(torch.zeros(1, 3, 64, 64))))'
    )
    run = python(code, cwd=tmp_path / 'elsewhere', path=tmp_path / 'site')
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(site / '__init__.py'), '4']


@pytest.mark.parametrize('tool', sorted(p.name for p in (ROOT / 'tools').glob('*.py')))
def test_every_tool_explains_itself(tool, tmp_path):
    run = subprocess.run(
        [sys.executable, ROOT / 'tools' / tool, '--help'], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert 'usage:' in run.stdout


def test_the_installer_names_bad_options():
    for arguments, message in (
        (['--stack', 'new'], "unknown stack 'new'; choose onedl or classic"),
        (['--cuda-ops', 'yes'], "--cuda-ops is auto, on or off; got 'yes'"),
        (['--vnev', 'x'], "unknown option '--vnev'; try --help"),
    ):
        run = subprocess.run(['bash', ROOT / 'tools' / 'install.sh', *arguments], capture_output=True, text=True)
        assert run.returncode != 0
        assert message in run.stderr
