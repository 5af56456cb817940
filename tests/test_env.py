"""The report for issues: right where all is well, and one line for whatever is broken."""

import os
import re
import subprocess
import sys

import pytest
import torch
from fresh_python import ALONE, fake, fake_distribution, python
from helpers import usable_device

from mmsoft import env
from mmsoft.ops import kernels
from mmsoft.versions import REQUIREMENTS, vision_for


def report(path=None, module='mmsoft.env'):
    environment = dict(os.environ, **({'PYTHONPATH': str(path)} if path else {}))
    run = subprocess.run([sys.executable, '-m', module], env=environment, capture_output=True, text=True)
    assert 'Traceback' not in run.stdout + run.stderr, run.stderr
    return run.returncode, run.stdout


def rows(text):
    return {line[:16].strip(): line[17:].strip() for line in text.partition('\n\n')[0].splitlines()}


def test_all_is_well_in_the_tested_set(capsys):
    code = env.main()
    text = capsys.readouterr().out
    assert code == 0, text
    assert text.endswith('All is well.\n')
    found = rows(text)
    for name in ('mmsoft', 'python', *REQUIREMENTS):
        assert found[name][0].isdigit(), text
    assert found['mmcv operators'].endswith('nms and RoIAlign run')
    assert {'OpenMMLab line', 'CPU', 'GPU', 'kernels'} <= found.keys()
    assert len(text.splitlines()) < 30


def test_kernels_are_those_that_the_dispatcher_would_take():
    special = {'cpu': 'gelu_tanh', 'cuda': 'slicing'}['cuda' if torch.cuda.is_available() else 'cpu']
    assert special in env._kernels()[1].rpartition('; portable: ')[0]
    assert ('no Triton: tensors are on the CPU' in env._kernels()[1]) == (not torch.cuda.is_available())
    with kernels('portable'):
        assert re.fullmatch(r'portable: \d+ operators', env._kernels()[1])


def test_importing_it_is_light():
    run = python('import mmsoft.env, sys; print(sorted({m.split(".")[0] for m in sys.modules} & {"torch", "mmcv"}))')
    assert run.stdout == '[]\n', run.stderr


BROKEN = {
    'a torch that does not import': (
        dict(torch='raise OSError("libcudnn.so.9: cannot open shared object file")'),
        'mmsoft needs torch >= 2.6, but importing it fails: libcudnn.so.9',
        'pip install --force-reinstall --no-deps --no-cache-dir "torch>=2.6"',
    ),
    'a torch that ends the program': (dict(torch='raise SystemExit("no")'), 'torch: SystemExit: no', ''),
    'a torchvision for another torch': (
        dict(torchvision='raise RuntimeError("operator torchvision::nms does not exist")'),
        'operator torchvision::nms does not exist; mend it with `pip install',
        f'"torchvision{vision_for(torch.__version__)}"',
    ),
    'an old mmdet': (dict(mmdet='__version__ = "2.28.2"'), 'mmdet 2.28.2 is too old; mend it with `pip install', ''),
}


@pytest.mark.slow
@pytest.mark.parametrize('case', BROKEN)
def test_what_is_broken_is_one_line_with_its_cure(case, tmp_path):
    modules, fault, cure = BROKEN[case]
    for name, text in modules.items():
        fake(tmp_path, name, text)
    code, text = report(tmp_path)
    assert code == 1
    faults = text.partition('\n\n')[2].splitlines()
    assert len(faults) == 1, text
    assert fault in faults[0]
    assert cure in faults[0]
    assert rows(text)[next(iter(modules))] == 'WRONG, see below'


@pytest.mark.slow
def test_an_empty_mmcv_and_none_at_all(tmp_path):
    (tmp_path / 'mmcv').mkdir()
    code = f'{ALONE}\nfrom mmsoft.env import main; sys.exit(main())'
    run = python(code, path=tmp_path)
    assert run.returncode == 1, run.stderr
    assert 'mmcv is only a folder without its modules' in run.stdout.partition('\n\n')[2]
    assert rows(run.stdout)['mmdet'] == 'not tried         it needs mmcv'
    (tmp_path / 'mmcv').rmdir()
    run = python(code, path=tmp_path)
    assert run.returncode == 1
    assert 'mmcv is not installed; mend it with `pip install "' in run.stdout
    hidden = code.replace("('mmcv',)", "('mmcv', 'mmengine', 'mmdet', 'mmseg', 'cv2')")
    run = python(hidden, path=tmp_path)  # as for users of timm
    assert run.returncode == 0, run.stdout
    assert rows(run.stdout)['mmdet'] == 'not installed     pip install "mmsoft[openmmlab]"'


@pytest.mark.slow
def test_two_lines_in_one_folder_are_named(tmp_path):
    for name, version in (('mmcv-lite', '2.1.0'), ('onedl-mmcv', '2.3.6')):
        fake_distribution(tmp_path, name, version)
    code, text = report(tmp_path, 'mmsoft.versions')  # its former name
    assert code == 1
    assert 'mmcv-lite, onedl-mmcv write the same folders; mend it with `pip uninstall -y mmcv-lite onedl-mmcv`' in text


def test_tests_run_on_a_device_that_is_there():
    with pytest.raises(SystemExit, match="MMSOFT_TEST_DEVICE is 'cdua', which torch has not here: name cpu or cuda"):
        usable_device('cdua')
    assert usable_device('meta').type == 'meta'
