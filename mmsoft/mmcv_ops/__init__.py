"""mmcv's operators without a compiler: torch and torchvision answer where ``mmcv._ext`` was not compiled.

``import mmsoft`` calls ``activate``. It puts a finder behind all others, so that a compiled ``mmcv._ext`` is always
found first, and nothing is imported before mmcv asks. A program that imports mmdet before mmsoft needs
``python -m mmsoft.mmcv_ops --install``, once.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = 'mmcv._ext'
SUBSTITUTE = Path(__file__).parent / 'ext.py'
# What --install writes into mmcv/_ext.py.
LINE = 'from mmsoft.mmcv_ops.ext import __getattr__  # `python -m mmsoft.mmcv_ops --remove` takes this file away\n'


class _Finder:
    """The last of ``sys.meta_path``: gives ``ext.py`` for an ``mmcv._ext`` that nobody else has."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        return importlib.util.spec_from_file_location(NAME, SUBSTITUTE) if name == NAME else None


def activate() -> None:
    """Let ``mmcv.ops`` import without compiled operators; does nothing where they exist."""
    if _Finder not in sys.meta_path:
        sys.meta_path.append(_Finder)  # type: ignore[arg-type]


def provider() -> tuple[str, str]:
    """Whose operators ``mmcv.ops`` takes, without importing them, and the file that holds them.

    ``compiled``: mmcv's own; ``installed``: ours, by the file that ``--install`` wrote; ``foreign``: somebody else's
    ``_ext.py``; ``active``: ours, in this process; ``missing``: nobody's, as there is no mmcv.
    """
    package = importlib.util.find_spec('mmcv')
    if package is None or package.origin is None:  # nothing, or a folder that an uninstall left behind
        return 'missing', ''
    spec = importlib.machinery.PathFinder.find_spec(NAME, list(package.submodule_search_locations or ()))
    if spec is None or spec.origin is None:
        return 'active', str(SUBSTITUTE)
    if not spec.origin.endswith('.py'):
        return 'compiled', spec.origin
    return ('installed' if Path(spec.origin).read_text(encoding='utf-8') == LINE else 'foreign'), spec.origin
