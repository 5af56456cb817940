"""The documentation: each page's Python runs, in one namespace from top to bottom, on small pictures and weights."""

import re
from pathlib import Path

import mmseg
import pytest
import torch
from helpers import MINI, ROOT, exports_whole_models
from mmengine.registry import MODELS, init_default_scope
from own_sets import coco
from PIL import Image
from small_runs import small_checkpoint
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

from mmsoft.cli import copy_config
from mmsoft.engine.config import load_config, without_pretrained
from mmsoft.models import FAMILIES, MILAClassifier, SOFTClassifier

pytestmark = pytest.mark.slow
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('**/*.md'))]
PAGES = [pytest.param(page, marks=exports_whole_models) if page.stem == 'deploy' else page for page in PAGES]
SEGMENTATION = Path(mmseg.__file__).parent / '.mim' / 'configs'


def run_python(example: Example) -> None:
    """A block that has a base, in either style, is a config, which is read and whose model is built; others are run."""
    if not {'_base_', 'read_base'} & {*re.findall(r'\w+', example.parsed)}:
        PythonEvaluator()(example)
        return
    file = Path(f'config_{example.line}.py')
    file.write_text(example.parsed.replace('../mmsegmentation/configs', str(SEGMENTATION)))
    cfg = load_config(file)
    init_default_scope(cfg.default_scope)
    without_pretrained(cfg)
    with torch.device('meta'):
        MODELS.build(cfg.model)


PYTHON = Sybil(parsers=[CodeBlockParser('python', run_python), SkipParser()])


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """What the pages name: the authors' file, a checkpoint of a training, a config, a set of data and a picture."""
    folder = tmp_path_factory.mktemp('reader')
    state = FAMILIES['SOFT'].to_published(SOFTClassifier('tiny', attn='soft').state_dict())
    for name in ('soft_tiny.pth', 'downloaded.pth'):
        torch.save(dict(model=state), folder / name)
    mila = MILAClassifier(dict(dims=(32, 64, 128, 256), heads=(1, 2, 4, 8), depths=(1, 1, 1, 1)))
    torch.save(dict(model=FAMILIES['MILA'].to_published(mila.state_dict())), folder / 'MLLA_T.pth')
    small = dict(newton_iters=2, arch=dict(MINI, depths=(1, 1, 1, 1)))  # docs/deploy.md exports it twice
    small_checkpoint('retinanet', folder, **small)[1].rename(folder / 'epoch_12.pth')
    copy_config('retinanet_soft_pp_tiny_1x_coco', folder)
    load_config('retinanet_soft_pp_tiny_1x_coco').dump(folder / 'retinanet_base.py')  # as mmsoft config --out
    coco(folder / 'my_set', 6)
    Image.linear_gradient('L').convert('RGB').resize((96, 64)).save(folder / 'street.jpg')
    return folder


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_python_of_a_page_runs(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    for example in PYTHON.parse(page).examples():
        example.evaluate()
