"""The version gate: one sentence that says what is missing or too old, and how to install it."""

import importlib
import importlib.metadata
import platform
import re
import sys
from typing import NamedTuple

INSTALL = 'bash tools/install.sh'


class StackError(ImportError):
    """A library that a feature needs is missing, broken, too old or too new."""


class Requirement(NamedTuple):
    """Oldest version that works, first version that is not known to (or ''), and what pip installs.

    OpenMMLab comes as the maintained OneDL distributions and as the original ones.
    """

    oldest: str
    below: str
    pip: str
    pip_classic: str


REQUIREMENTS = {
    'torch': Requirement('2.1', '', 'torch==2.12.1', 'torch==2.1.2'),
    'torchvision': Requirement('0.16', '', 'torchvision==0.27.1', 'torchvision==0.16.2'),
    'mmengine': Requirement('0.10.5', '1.0', 'onedl-mmengine==0.10.12', 'mmengine==0.10.7'),
    'mmcv': Requirement('2.1.0', '3.0', 'onedl-mmcv==2.3.6', 'mmcv==2.1.0'),
    'mmdet': Requirement('3.3.0', '4.0', 'onedl-mmdetection==3.5.1', 'mmdet==3.3.0'),
    'mmseg': Requirement('1.2.2', '2.0', 'onedl-mmsegmentation==1.4.2', 'mmsegmentation==1.2.2'),
    'timm': Requirement('1.0.3', '2.0', 'timm==1.0.31', 'timm==1.0.31'),
    'safetensors': Requirement('0.4', '', 'safetensors', 'safetensors'),
    'huggingface_hub': Requirement('0.17', '', 'huggingface_hub', 'huggingface_hub'),
}


def require(*names: str) -> None:
    """Raise StackError unless every named library imports at a version that is known to work."""
    for name in names:
        requirement = REQUIREMENTS[name]
        wanted = f'{name} >= {requirement.oldest}' + (f', < {requirement.below}' if requirement.below else '')
        cure = _cure(requirement)
        try:
            found = getattr(importlib.import_module(name), '__version__', None)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise StackError(f'mmsoft needs {wanted}, but importing it fails: {error}; {cure}.') from error
            raise StackError(f'mmsoft needs {wanted}, but {name} is not installed; {cure}.') from error
        except Exception as error:  # mismatched pairs refuse in many ways: AssertionError, OSError, AttributeError, ...
            raise StackError(f'mmsoft needs {wanted}, but importing it fails: {error}; {cure}.') from error
        if found is None:
            raise StackError(f'mmsoft needs {wanted}, but {name} is only an empty folder; {cure}.')
        if _numbers(found) < _numbers(requirement.oldest):
            raise StackError(f'mmsoft needs {wanted}, but {name} {found} is too old; {cure}.')
        if requirement.below and _numbers(found) >= _numbers(requirement.below):
            raise StackError(f'mmsoft needs {wanted}, but {name} {found} is too new; {cure}.')


def _cure(requirement: Requirement) -> str:
    """How to install it, in the line of distributions that is there already."""
    try:
        importlib.metadata.version('mmengine')
    except importlib.metadata.PackageNotFoundError:
        package, script = requirement.pip, INSTALL
    else:
        package, script = requirement.pip_classic, f'{INSTALL} --stack classic'
    # OpenMMLab's packages build against the torch that is there
    isolation = '--no-build-isolation ' if re.match(r'(onedl-)?mm', package) else ''
    return f'install it with `pip install {isolation}{package}`, or the whole stack with `{script}` of a checkout'


def _numbers(version: str) -> tuple[int, ...]:
    """'2.12.1+cu130' -> (2, 12, 1); '1.0rc1' -> (1, 0)."""
    numbers = []
    for part in version.split('+')[0].split('.'):
        digits = re.match(r'\d+', part)
        if not digits:
            break
        numbers.append(int(digits.group()))
    return tuple(numbers)


def main() -> None:
    """Import the whole stack, run one of mmcv's compiled operators, print a table of versions."""
    require(*REQUIREMENTS)
    import torch
    from mmcv.ops import nms

    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 11.0, 11.0], [20.0, 20.0, 30.0, 30.0]])
    _, kept = nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5)
    if kept.tolist() != [0, 2]:
        raise StackError(
            f'mmcv.ops.nms is broken: it keeps boxes {kept.tolist()}, not [0, 2]; {INSTALL} rebuilds mmcv.'
        )
    owners = importlib.metadata.packages_distributions()
    rows = [('library', 'version', 'distribution')]
    for name in (*REQUIREMENTS, 'numpy', 'cv2'):
        rows.append(
            (name, importlib.import_module(name).__version__, ', '.join(sorted(set(owners.get(name, (name,))))))
        )
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else 'none'
    rows += [
        ('python', platform.python_version(), sys.prefix),
        ('gpu', gpu, f'torch built for CUDA {torch.version.cuda}'),
    ]
    for row in rows:
        print(f'{row[0]:<17}{row[1]:<18}{row[2]}')
    print('mmcv.ops.nms runs')


if __name__ == '__main__':
    main()
