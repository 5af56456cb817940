"""``python -m mmsoft.mmcv_ops``: operators for programs that import mmdet or mmcv before mmsoft."""

import argparse
import importlib.util
import sys
from pathlib import Path

from mmsoft.mmcv_ops import LINE, provider


def _file() -> Path:
    """Where the line goes: ``_ext.py`` of the installed mmcv."""
    package = importlib.util.find_spec('mmcv')
    if package is None or not package.submodule_search_locations:
        sys.exit('mmcv is not installed; `pip install "mmsoft[openmmlab]"`.')
    return Path(next(iter(package.submodule_search_locations))) / '_ext.py'


def install() -> str:
    file = _file()
    whose, where = provider()
    if not (file.parent / '__init__.py').is_file():
        sys.exit(f'{file.parent} is only a folder without its modules: `pip install "mmsoft[openmmlab]"` brings them.')
    if whose == 'compiled':
        sys.exit(f'mmcv has compiled operators ({where}), and they are used: nothing to install.')
    if file.is_file() and file.read_text() != LINE:
        sys.exit(f'{file} exists and is not of this command: it stays as it is. Move it away first.')
    try:
        file.write_text(LINE)
    except OSError as error:
        sys.exit(f'{file} cannot be written ({error.strerror}): run this as the user who owns that environment.')
    return f'{file} now gives mmcv the operators of mmsoft.'


def remove() -> str:
    file = _file()
    if not file.is_file() or file.read_text() != LINE:
        sys.exit(f'{file} is not there, or is not of this command: nothing was removed.')
    try:
        file.unlink()
    except OSError as error:
        sys.exit(f'{file} cannot be removed ({error.strerror}): run this as the user who owns that environment.')
    return f'{file} is removed; mmcv has operators where mmsoft is imported first.'


def status() -> str:
    whose, where = provider()
    return {
        'compiled': f'compiled: mmcv has operators of its own, {where}.',
        'installed': f'installed: mmcv takes those of mmsoft in every program, by {where}.',
        'foreign': f'foreign: mmcv takes those of {where}, which is neither its own nor of this command.',
        'active': 'active: mmcv takes those of mmsoft where mmsoft is imported first; --install is for all programs.',
        'missing': 'missing: mmcv is not installed, or only a folder; `pip install "mmsoft[openmmlab]"` brings it.',
    }[whose]


def main() -> None:
    parser = argparse.ArgumentParser(prog='python -m mmsoft.mmcv_ops', description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument('--install', action='store_const', const=install, dest='do', help='write mmcv/_ext.py')
    action.add_argument('--remove', action='store_const', const=remove, dest='do', help='take it away again')
    action.add_argument('--status', action='store_const', const=status, dest='do', help='whose operators mmcv takes')
    print(parser.parse_args().do())


if __name__ == '__main__':
    main()
