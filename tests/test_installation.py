"""The wheel, as users get it: what it holds, and a clean environment that trains with nothing else than pip's work."""

import json
import os
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution, distributions
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT, exports_whole_models
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from small_exports import checkpoint_of

from mmsoft.deploy import Result
from mmsoft.engine.predictor import Predictor
from mmsoft.exporting import export
from mmsoft.exporting.doubt import Doubt
from mmsoft.exporting.parity import TOLERANCES, compare_answers

PIP = ('-m', 'pip', '-q', '--disable-pip-version-check')


pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def tracked():
    command = ['git', 'ls-files', '-co', '--exclude-standard']
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in names if (ROOT / name).is_file()]


@pytest.fixture(scope='module')
def wheel(tracked, tmp_path_factory):
    """Built from a copy of what is under version control."""
    folder = tmp_path_factory.mktemp('wheel')
    for name in tracked:
        (folder / 'source' / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / 'source' / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, *PIP, 'wheel', folder / 'source', '--no-deps', '-w', folder], check=True)
    (built,) = folder.glob('mmsoft-*-none-any.whl')
    return built


def test_the_wheel_holds_everything_and_is_small(wheel, tracked, tmp_path):
    subprocess.run([sys.executable, *PIP, 'install', '--no-deps', '--target', tmp_path, wheel], check=True)
    site = tmp_path / 'mmsoft'
    shipped = {p.relative_to(site).as_posix() for p in site.rglob('*') if p.is_file() and p.suffix != '.pyc'}
    assert {name.removeprefix('mmsoft/') for name in tracked if name.startswith('mmsoft/')} <= shipped
    configs = {f'.mim/{name}' for name in tracked if name.startswith('configs/')}
    assert len(configs) > 24
    assert configs | {'.mim/tools/train.py', '.mim/tools/model_zoo.py', '.mim/model-index.yml', 'py.typed'} <= shipped
    research = ('benchmark', 'studies', 'zoo', 'compare_', 'check_', 'gpu_')
    assert not [name for name in shipped if name.startswith(tuple(f'.mim/tools/{part}' for part in research))]
    assert wheel.stat().st_size < 600_000
    command = [sys.executable, '-m', 'mmsoft', 'configs', 'soft_pp_tiny_300e_in1k', '--copy', 'own']
    outside = dict(os.environ, PYTHONPATH=str(tmp_path))
    subprocess.run(command, cwd=tmp_path, env=outside, check=True)
    assert (tmp_path / 'own' / '_base_' / 'no_decay.py').is_file()
    listed = subprocess.run([*command[:3], '--help'], cwd=tmp_path, env=outside, capture_output=True, text=True).stdout
    assert '  train ' in listed
    assert '  benchmark ' not in listed
    assert (tmp_path / 'bin' / 'mmsoft').is_file() or sys.platform == 'win32'


def closure(*names):
    """Distributions and all that they need here."""
    found, left = {}, list(names)
    while left:
        name = canonicalize_name(left.pop())
        if name not in found:
            found[name] = distribution(name)
            needed = map(Requirement, found[name].requires or ())
            left += [r.name for r in needed if not r.marker or r.marker.evaluate({'extra': ''}) or is_of_cuda(r.name)]
    return found.values()


def is_of_cuda(name):
    """torch asks for these by an extra of cuda-toolkit."""
    return name.startswith('nvidia-') and any(distributions(name=name))


def clean_environment(folder, *linked):
    """A virtual environment with pip and, to save gigabytes, links to files of some packages; its Python and folder."""
    subprocess.run([sys.executable, '-m', 'venv', folder], check=True)
    paths = sysconfig.get_paths(vars=dict(base=str(folder), platbase=str(folder)))
    site = Path(paths['purelib'])
    for package in closure(*linked):
        for file in package.files or ():
            target = site / file
            if '..' not in file.parts and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(file.locate())
    return Path(paths['scripts']) / 'python', site


# The shipped tool and config; the demo is shorter than for users.
TRAIN = """
import runpy, sys
from pathlib import Path
import mmsoft
from mmsoft import mmcv_ops
from mmsoft.engine import demo
demo.IMAGES, demo.VAL_IMAGES, demo.EPOCHS = 40, 4, dict(boxes=1)
mim = Path(mmsoft.__file__).parent / '.mim'
sys.argv[1:] = [str(mim / 'configs' / 'retinanet_soft_pp_tiny_1x_coco.py'), '--demo', '--work-dir', 'run']
runpy.run_path(str(mim / 'tools' / 'train.py'), run_name='__main__')
print(mmcv_ops.provider()[0], mmsoft.__file__)
"""


@pytest.mark.skipif(sys.platform == 'win32', reason='links need rights that users of Windows lack')
def test_one_pip_command_in_a_clean_environment_trains(wheel, tmp_path):
    """Outside of the checkout, and with no program on the path but Python's own."""
    python, _ = clean_environment(tmp_path / 'clean', 'torch', 'torchvision')
    environment = dict(os.environ, PATH=str(python.parent), OMP_NUM_THREADS='1')
    environment.pop('PYTHONPATH', None)

    def run(*arguments):
        done = subprocess.run([python, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        return done.stdout

    run(*PIP, 'install', f'{wheel}[openmmlab]')
    assert 'All is well.' in run('-m', 'mmsoft.env')
    provider, file = run('-c', TRAIN).splitlines()[-1].split()
    assert provider == 'active'
    assert Path(file).is_relative_to(tmp_path / 'clean')
    assert (tmp_path / 'run' / 'epoch_1.pth').is_file()
    assert next((tmp_path / 'clean').rglob('torch/__init__.py')).is_symlink()  # pip has kept it


# In an environment that has no torch.
ANSWER = """
import importlib.util, json, sys
import numpy as np
from mmsoft.deploy import load
found = load('model.onnx', runtime=sys.argv[1])(np.load('image.npy'))
missing = [name for name in ('torch', 'torchvision', 'mmengine', 'mmcv', 'cv2') if not importlib.util.find_spec(name)]
values = [getattr(found, name).tolist() for name in ('labels', 'scores', 'boxes')]
print(json.dumps([missing, values]))
"""


@pytest.fixture(scope='module')
def answered(tmp_path_factory):
    """A folder with a file and a picture, the checkpoint's answer, and what it leaves to rounding."""
    folder = tmp_path_factory.mktemp('exported')
    checkpoint = checkpoint_of('retinanet', folder)
    export(None, checkpoint, folder / 'model.onnx')
    image = np.random.default_rng(0).integers(0, 256, (90, 140, 3), dtype=np.uint8)
    np.save(folder / 'image.npy', image)
    predictor = Predictor(checkpoint, device='cpu')
    return folder, predictor(image), Doubt(predictor, image, TOLERANCES['fp32'], 1.0)


@exports_whole_models
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(('extra', 'runtime'), [('deploy', 'onnxruntime'), ('openvino', 'openvino')])
def test_a_file_runs_in_a_clean_environment_without_torch(extra, runtime, wheel, answered, tmp_path):
    folder, expected, doubt = answered
    python, site = clean_environment(tmp_path / 'clean')
    environment = {key: value for key, value in os.environ.items() if key != 'PYTHONPATH'}
    subprocess.run([python, *PIP, 'install', f'{wheel}[{extra}]'], env=environment, check=True)
    command = [python, '-c', ANSWER, runtime]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    missing, values = json.loads(done.stdout)
    assert missing == ['torch', 'torchvision', 'mmengine', 'mmcv', 'cv2']
    assert len(expected.boxes) > 20
    found = Result((90, 140), [], *map(np.array, values))
    row = compare_answers(expected, found, TOLERANCES['fp32'], 1.0, doubt)
    assert not row.worst_of(TOLERANCES['fp32']), row
    if extra == 'deploy':
        files = [file for file in site.rglob('*') if file.is_file()]
        assert sum(file.stat().st_size for file in files) < 300e6
