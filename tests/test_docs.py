"""The documentation: each page's Python runs, in one namespace from top to bottom, on small pictures and weights."""

from pathlib import Path

import mmseg
import pytest
import torch
from helpers import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from PIL import Image
from small_runs import small_checkpoint
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

from mmsoft.engine.config import without_pretrained
from mmsoft.models import FAMILIES, SOFTClassifier

pytestmark = pytest.mark.slow
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('**/*.md'))]
SEGMENTATION = Path(mmseg.__file__).parent / '.mim' / 'configs'


def run_python(example: Example) -> None:
    """A block that has a ``_base_`` is a config, which is read and whose model is built; others are run."""
    if '_base_' not in example.parsed:
        PythonEvaluator()(example)
        return
    file = Path(f'config_{example.line}.py')
    file.write_text(example.parsed.replace('../mmsegmentation/configs', str(SEGMENTATION)))
    cfg = Config.fromfile(file)
    init_default_scope(cfg.default_scope)
    without_pretrained(cfg)
    with torch.device('meta'):
        MODELS.build(cfg.model)


PYTHON = Sybil(parsers=[CodeBlockParser('python', run_python), SkipParser()])


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """What the pages name: the authors' file, a checkpoint of a training, and a picture."""
    folder = tmp_path_factory.mktemp('reader')
    state = FAMILIES['SOFT'].to_published(SOFTClassifier('tiny', attn='soft').state_dict())
    for name in ('soft_tiny.pth', 'downloaded.pth'):
        torch.save(dict(model=state), folder / name)
    small_checkpoint('retinanet', folder)[1].rename(folder / 'epoch_12.pth')
    Image.linear_gradient('L').convert('RGB').resize((96, 64)).save(folder / 'street.jpg')
    return folder


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_python_of_a_page_runs(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    for example in PYTHON.parse(page).examples():
        example.evaluate()
