"""A program of torch.export outside of Python: what docs/deploy.md says of AOTInductor and C++, run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT, exports_whole_models
from small_runs import small_checkpoint

from mmsoft.exporting import export

pytestmark = [exports_whole_models, pytest.mark.slow]


@pytest.mark.skipif(not shutil.which('g++'), reason='a C++ compiler is what this is about')
def test_the_pages_program_in_cpp_answers_as_the_file(tmp_path):
    _, checkpoint = small_checkpoint('classifier', tmp_path, newton_iters=2)
    export(None, str(checkpoint), tmp_path / 'classifier.pt2')
    program = torch.export.load(tmp_path / 'classifier.pt2')
    torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / 'compiled.pt2'))
    page = (ROOT / 'docs' / 'deploy.md').read_text()
    (tmp_path / 'classify.cpp').write_text(re.search(r'```cpp\n(.*?)```', page, re.DOTALL)[1])
    (commands,) = [block for block in re.findall(r'```bash\n(.*?)```', page, re.DOTALL) if 'g++' in block]
    path = f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}'
    options = dict(cwd=tmp_path, env=dict(os.environ, PATH=path), check=True, capture_output=True, text=True)
    found = subprocess.run(['bash', '-e', '-c', commands.replace('224', '64')], **options)
    scores = [float(number) for number in re.findall(r'\d\.\d+(?:e-\d+)?', found.stdout)]
    expected = program.module()(torch.full((1, 3, 64, 64), 100.0))[0].detach().numpy()
    assert len(scores) == 6
    assert np.allclose(scores, expected, atol=1e-3)
    assert expected.std() > 1e-2, 'equal scores show nothing'
