"""The version gate: one sentence that says what is missing, broken or too old, and the command that mends it."""

import importlib
import importlib.metadata
import re
import sys
from typing import NamedTuple

from mmsoft import mmcv_ops


class StackError(ImportError):
    """A library that a feature needs is missing, broken, too old or too new."""


class Requirement(NamedTuple):
    """Oldest version that works, first version that is not known to (or ''), and what pip installs.

    OpenMMLab comes in two lines of distributions: OneDL's, which are maintained, and the original ones.
    """

    oldest: str
    below: str
    onedl: str
    original: str


def _both(oldest: str, below: str, specification: str) -> Requirement:
    return Requirement(oldest, below, specification, specification)


# What pip installs stands in pyproject.toml as well, word for word; a test compares them.
REQUIREMENTS = {
    'torch': _both('2.6', '', 'torch>=2.6'),
    'torchvision': _both('0.21', '', 'torchvision>=0.21'),
    'numpy': _both('1.26', '', 'numpy>=1.26'),
    'safetensors': _both('0.4', '', 'safetensors>=0.4'),
    'filelock': _both('3.13', '', 'filelock>=3.13'),
    'mmengine': Requirement('0.10.5', '1.0', 'onedl-mmengine~=0.10.12', 'mmengine~=0.10.7'),
    'mmcv': Requirement('2.1.0', '3.0', 'onedl-mmcv~=2.3.0', 'mmcv-lite~=2.1.0'),
    'mmdet': Requirement('3.3.0', '4.0', 'onedl-mmdetection~=3.5.1', 'mmdet~=3.3.0'),
    'mmseg': Requirement('1.2.2', '2.0', 'onedl-mmsegmentation~=1.4.2', 'mmsegmentation~=1.2.2'),
    'cv2': _both('4.5', '5.0', 'opencv-python<5'),
    'timm': _both('1.0.3', '2.0', 'timm>=1.0.3,<2'),
    'huggingface_hub': _both('0.17', '', 'huggingface_hub>=0.17'),
    'onnx': _both('1.18', '', 'onnx>=1.18'),
    'onnxscript': _both('0.4', '', 'onnxscript>=0.4'),
    'onnxruntime': _both('1.22', '', 'onnxruntime>=1.22'),
    'openvino': _both('2025.0', '', 'openvino>=2025.0'),
    'PIL': _both('10.1', '', 'Pillow>=10.1'),
    'starlette': _both('0.40', '', 'starlette>=0.40'),
    'uvicorn': _both('0.30', '', 'uvicorn>=0.30'),
}
# What fails to import where one of these does.
NEEDS = {
    'torchvision': ('torch',),
    'mmengine': ('torch',),
    'mmcv': ('torchvision', 'mmengine'),
    'mmdet': ('mmcv',),
    'mmseg': ('mmcv',),
    'timm': ('torchvision',),
    'onnxscript': ('onnx',),
}
OPENMMLAB = ('mmdet', 'mmseg', 'mmengine', 'mmcv')
# Distributions that write the folder ``mmcv``.
MMCV = ('onedl-mmcv', 'mmcv', 'mmcv-lite', 'mmcv-full')
# Modules whose distribution has another name.
DISTRIBUTIONS = {'yaml': 'pyyaml', 'PIL': 'pillow', 'pkg_resources': 'setuptools<82'}


def require(*names: str) -> None:
    """Raise StackError unless every named library imports, whole, at a version that is known to work."""
    for name in names:
        require(*NEEDS.get(name, ()))
        check(name)


def check(name: str) -> str:
    """The version of one library; StackError unless it imports, whole, at a version that is known to work."""
    requirement = REQUIREMENTS[name]
    wanted = f'mmsoft needs {name} >= {requirement.oldest}' + (f', < {requirement.below}' if requirement.below else '')
    try:
        found = getattr(importlib.import_module(name), '__version__', None)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise StackError(f'{wanted}, but {name} is not installed; {_cure(name)}.') from error
        raise StackError(f'{wanted}, but importing it fails: {error}; {_cure_of_import(name, error)}.') from error
    except Exception as error:  # mismatched pairs refuse in many ways: AssertionError, OSError, RuntimeError, ...
        raise StackError(
            f'{wanted}, but importing it fails: {first_line(error)}; {_cure_of_import(name, error)}.'
        ) from error
    if found is None:
        what = 'only a folder without its modules, which an uninstall left behind'
        raise StackError(f'{wanted}, but {name} is {what}; {_cure(name, broken=True)}.')
    if numbers(found) < numbers(requirement.oldest):
        raise StackError(f'{wanted}, but {name} {found} is too old; {_cure(name)}.')
    if requirement.below and numbers(found) >= numbers(requirement.below):
        raise StackError(f'{wanted}, but {name} {found} is too new; {_cure(name)}.')
    if name == 'torchvision':
        _check_pair(found)
    if name == 'mmcv':
        _check_operators(found)
    return found


def _check_pair(torchvision: str) -> None:
    """Nightly builds are let through."""
    torch = sys.modules['torch'].__version__
    wanted = vision_for(torch)
    series, oldest = numbers(torchvision)[:2], numbers(wanted.lstrip('=>'))
    fits = series >= oldest if wanted.startswith('>') else series == oldest
    if wanted and 'dev' not in torch + torchvision and not fits:
        raise StackError(
            f'torchvision {torchvision} is not made for torch {torch}, which needs torchvision {wanted.strip("=.*")}; '
            f'{_cure("torchvision", broken=True)}.'
        )


def vision_for(torch: str) -> str:
    """'2.12.1' -> '==0.27.*', the torchvision for this torch; '' for a torch of another generation.

    torchvision 0.(x + 15) is made for torch 2.x; from 0.29 on, for torch 2.14 and every newer one.
    """
    major, minor, *_ = (*numbers(torch), 0, 0)
    if major != 2:
        return ''
    return f'==0.{minor + 15}.*' if minor < 14 else '>=0.29'


def _check_operators(mmcv: str) -> None:
    """Compiled operators that were built for another torch fail here, and not in the middle of a program."""
    try:
        importlib.import_module('mmcv.ops')
    except Exception as error:
        whose, file = mmcv_ops.provider()
        if whose in ('compiled', 'installed', 'foreign'):
            delete = 'del' if sys.platform == 'win32' else 'rm'
            cure = f'mend it with `{delete} "{file}"`, and those of mmsoft take their place'
        else:
            cure = _cure_of_import('mmcv', error)
        raise StackError(f'the operators of mmcv {mmcv} do not import: {first_line(error)}; {cure}.') from error


def line() -> str:
    """The OpenMMLab line that is installed: 'onedl' or 'original'; 'onedl' where there is none."""
    for name in OPENMMLAB:
        for choice in ('onedl', 'original'):
            if installed(_distribution(getattr(REQUIREMENTS[name], choice))):
                return choice
    return 'onedl'


def installed(distribution: str) -> str:
    """The version that pip knows, or ''."""
    try:
        return importlib.metadata.version(distribution) or ''
    except importlib.metadata.PackageNotFoundError:
        return ''


def _cure(name: str, *, broken: bool = False) -> str:
    """The command that installs this library, in the line of distributions that is there."""
    specification = getattr(REQUIREMENTS[name], line())
    if name == 'torchvision' and (vision := vision_for(installed('torch'))):
        specification = f'torchvision{vision}'
    distribution = _distribution(specification)
    others = [d for d in MMCV if d != distribution and installed(d)] if name == 'mmcv' else []
    if others:  # they write the same folder
        return f'mend it with `pip uninstall -y {" ".join(others)}` and then {pip(specification, again=True)}'
    if broken and installed(distribution):
        return f'mend it with {pip(specification, again=True)}'
    extra = 'openmmlab' if line() == 'onedl' else 'openmmlab-original'
    whole = f', or everything with {pip(f"mmsoft[{extra}]")}' if name in OPENMMLAB else ''
    if name == 'torch' and not installed('torch'):
        whole = f', or with what uses it: {pip("mmsoft[timm]")} or {pip(f"mmsoft[{extra}]")}'
    return f'mend it with {pip(specification)}{whole}'


def _cure_of_import(name: str, error: Exception) -> str:
    """The command that mends an import that fails: what is at fault may be another library."""
    text = str(error)
    if 'libGL' in text or 'libgthread' in text:
        return f'OpenCV lacks a library of displays, mend it with {pip("opencv-python-headless<4.13", again=True)}'
    if 'torchvision::' in text:
        return _cure('torchvision', broken=True)
    if 'MMCV==' in text:  # mmdet's and mmseg's own gate
        return _cure('mmcv')
    top = (getattr(error, 'name', None) or '').partition('.')[0]
    if isinstance(error, ModuleNotFoundError) and top != name:
        return _cure(top) if top in REQUIREMENTS else f'mend it with {pip(DISTRIBUTIONS.get(top, top))}'
    return _cure(name, broken=True)


def pip(specification: str, *, again: bool = False) -> str:
    """A pip command in backquotes; ``again`` puts files back that pip takes for installed.

    Without the cache, where an mmcv lies that was compiled for another torch.
    """
    return f'`pip install {"--force-reinstall --no-deps --no-cache-dir " * again}"{specification}"`'


def _distribution(specification: str) -> str:
    """'onedl-mmcv~=2.3.0' -> 'onedl-mmcv'."""
    return re.match(r'[\w-]+', specification)[0]  # type: ignore[index]


def first_line(error: BaseException) -> str:
    """The first line of what an error says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip('.')


def numbers(version: str) -> tuple[int, ...]:
    """'2.12.1+cu130' -> (2, 12, 1); '1.0rc1' -> (1, 0)."""
    found = []
    for part in version.split('+')[0].split('.'):
        digits = re.match(r'\d+', part)
        if not digits:
            break
        found.append(int(digits.group()))
    return tuple(found)


if __name__ == '__main__':
    from mmsoft.env import main

    sys.exit(main())
