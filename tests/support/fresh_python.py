"""Code in a Python of its own, beside libraries that are made up."""

import os
import subprocess
import sys


def python(code, *, cwd=None, path=None):
    environment = dict(os.environ, **({'PYTHONPATH': str(path)} if path else {}))
    return subprocess.run([sys.executable, '-c', code], cwd=cwd, env=environment, capture_output=True, text=True)


def fake(tmp_path, name, text):
    (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / name / '__init__.py').write_text(text)


def fake_distribution(folder, name, version):
    (folder / f'{name.replace("-", "_")}-{version}.dist-info').mkdir(parents=True)
    (folder / f'{name.replace("-", "_")}-{version}.dist-info' / 'METADATA').write_text(
        f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n'
    )


ALONE = """
import sys
from importlib.machinery import PathFinder
class Alone:
    def find_spec(name, path=None, target=None):
        if name not in ('mmcv',):
            return None
        found = PathFinder.find_spec(name, [sys.path[1]])
        if found is None:
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
        return found
sys.meta_path.insert(0, Alone)
"""
