"""One screen to paste into an issue: versions, devices, whose operators run, and what mends what is wrong.

``python -m mmsoft.env``; the exit code is 0 when all is well and 1 otherwise.
"""

import contextlib
import importlib.metadata
import importlib.util
import io
import os
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import mmsoft
from mmsoft import mmcv_ops
from mmsoft.versions import MMCV, NEEDS, OPENMMLAB, REQUIREMENTS, StackError, check, first_line, line, pip

# What belongs together, and the extra that brings it. A group that is wholly absent is not needed by everybody.
GROUPS = {
    '': ('numpy', 'filelock'),
    'torch': ('torch', 'torchvision', 'safetensors'),
    'openmmlab': ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'cv2'),
    'timm': ('timm', 'huggingface_hub'),
    'export': ('onnx', 'onnxscript'),
    'deploy': ('PIL', 'onnxruntime'),
    'openvino': ('openvino',),
    'serve': ('starlette', 'uvicorn'),
}
LINES = {'onedl': 'onedl (maintained)', 'original': 'original'}
OPERATORS = {
    'compiled': "mmcv's own, compiled",
    'installed': "mmsoft's, installed in mmcv",
    'active': "mmsoft's",
    'foreign': "somebody's _ext.py",
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Libraries talk while they are imported; only errors matter here."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter('ignore')
        yield


class Report:
    """Prints rows as they come, so that a crash shows how far it got, and keeps what is wrong for the end."""

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}

    def works(self, name: str) -> bool:
        """Whether a library and all that it needs are there and right."""
        return name not in self.faults and all(map(self.works, NEEDS.get(name, ())))

    def row(self, name: str, value: str, note: str = '') -> None:
        print(f'{name:<16} {value:<17} {note}'.rstrip(), flush=True)

    def try_row(self, name: str, probe: Callable[[], tuple[str, str]]) -> None:
        """A row from what may fail in any way."""
        try:
            with _quiet():
                value, note = probe()
        except KeyboardInterrupt:
            raise
        except StackError as error:
            self.fault(name, str(error))
        except BaseException as error:  # a library may even call sys.exit
            self.fault(name, f'{name}: {type(error).__name__}: {first_line(error)}.')
        else:
            self.row(name, value, note)

    def fault(self, name: str, sentence: str) -> None:
        self.row(name, 'WRONG, see below')
        self.faults[name] = sentence


def _libraries(report: Report) -> None:
    known = importlib.metadata.packages_distributions()
    for extra, names in GROUPS.items():
        absent = [name for name in names if not _is_there(name)]
        # mmcv, timm and torchvision bring OpenCV, huggingface_hub and Pillow along
        optional = extra and set(names) - set(absent) <= {'cv2', 'huggingface_hub', 'PIL'}
        for name in names:
            first = [needed for needed in NEEDS.get(name, ()) if not report.works(needed)]
            if name in absent and optional:
                report.row(name, 'not installed', f'pip install "mmsoft[{extra}]"')
            elif first and name not in absent:
                report.row(name, 'not tried', f'it needs {first[0]}')
            else:
                owners = ', '.join(sorted(set(known.get(name, ()))))
                report.try_row(name, lambda name=name, owners=owners: (check(name), owners))


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
    except Exception:  # a module in sys.modules without a spec, a finder that fails
        return True


def _one_line(report: Report) -> None:
    """Distributions of both lines write the same folders, so that one of them has files of the other."""
    distributions = {d.metadata['Name'] for d in importlib.metadata.distributions()}
    both = [REQUIREMENTS[name] for name in OPENMMLAB]
    pairs = [(r.onedl.partition('~')[0], r.original.partition('~')[0]) for r in both] + [(MMCV[0], 'mmcv')]
    mixed = sorted({name for pair in pairs if distributions.issuperset(pair) for name in pair})
    if mixed:
        everything = pip(f'mmsoft[openmmlab{"-original" * (line() == "original")}]')
        report.fault(
            'OpenMMLab line',
            f'{", ".join(mixed)} write the same folders; mend it with `pip uninstall -y {" ".join(mixed)}` '
            f'and then {everything}.',
        )
    else:
        report.row('OpenMMLab line', LINES[line()])


def _operators() -> tuple[str, str]:
    """Two of mmcv's operators, run on boxes and a map whose results are known."""
    whose, file = mmcv_ops.provider()
    import torch
    from mmcv.ops import RoIAlign, nms

    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 11.0, 11.0], [20.0, 20.0, 30.0, 30.0]])
    kept = nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5)[1].tolist()
    pooled = RoIAlign(2)(torch.ones(1, 1, 8, 8), torch.tensor([[0.0, 1.0, 1.0, 5.0, 5.0]]))
    if kept != [0, 2] or not torch.allclose(pooled, torch.ones(1, 1, 2, 2)):
        cure = pip(getattr(REQUIREMENTS['mmcv'], line()), again=True)
        raise StackError(f'nms or RoIAlign of {file} gives wrong results; mend it with {cure}.')
    return OPERATORS[whose], 'nms and RoIAlign run'


def _devices(report: Report) -> None:
    threads = os.environ.get('OMP_NUM_THREADS')
    report.row('CPU', f'{os.cpu_count()} threads', _cpu_model() + (f', OMP_NUM_THREADS={threads}' if threads else ''))
    if _is_there('torch') and report.works('torch'):
        report.try_row('GPU', _gpus)


def _cpu_model() -> str:
    info = Path('/proc/cpuinfo')
    if info.is_file():
        for text in info.read_text().splitlines():
            if text.startswith('model name'):
                return text.partition(':')[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> tuple[str, str]:
    import torch

    built = f'torch is built for CUDA {torch.version.cuda}' if torch.version.cuda else 'torch is built without CUDA'
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return ', '.join(names), built
    if torch.backends.mps.is_available():
        return 'mps', built
    return 'none', built


def _kernels() -> tuple[str, str]:
    """Which implementations our operators would take here, and for what."""
    import torch

    from mmsoft.ops import dispatch

    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    found = dispatch.overview(device)
    portable = f'portable: {len(found.pop(dispatch.PORTABLE, []))} operators'
    special = [f'{kind or "none serves"}: {", ".join(names)}' for kind, names in found.items()]
    if special and (reason := dispatch.no_triton(torch.empty(0, device=device))):
        special.append(f'no Triton: {reason}')
    return f'on {device}', '; '.join([*special, portable])


def main() -> int:
    """Print the report; 1 if anything is wrong."""
    report = Report()
    report.row('mmsoft', mmsoft.__version__, str(Path(mmsoft.__file__).parent))
    report.row('python', platform.python_version(), f'{platform.platform()}, {sys.prefix}')
    _libraries(report)
    if _is_there('mmcv'):
        _one_line(report)
        if report.works('mmcv'):
            report.try_row('mmcv operators', _operators)
    _devices(report)
    if _is_there('torchvision') and report.works('torchvision'):
        report.try_row('kernels', _kernels)
    print('', *report.faults.values(), sep='\n')
    if not report.faults:
        print('All is well.')
    return bool(report.faults)


if __name__ == '__main__':
    sys.exit(main())
