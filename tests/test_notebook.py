"""The notebook runs from top to bottom, as it stands: own data, training, detections, attention, export."""

import nbformat
import pytest
from helpers import ROOT, exports_whole_models, first_on_path
from nbclient import NotebookClient

NOTEBOOK = ROOT / 'docs' / 'notebook.ipynb'


def test_the_notebook_is_kept_without_outputs():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert not any(cell.get('outputs') or cell.get('execution_count') for cell in cells)
    unrun = [cell.source for cell in cells if 'skip-execution' in cell.metadata.get('tags', ())]
    assert unrun == ['%pip install "mmsoft[openmmlab,export]"']


@pytest.mark.slow
@exports_whole_models
def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    monkeypatch.setenv('PYTHONPATH', first_on_path(tmp_path)['PYTHONPATH'])
    book = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(book, timeout=300, kernel_name='python3', resources=dict(metadata=dict(path=tmp_path))).execute()
    shown = [cell.outputs for cell in book.cells if cell.cell_type == 'code']
    pictures = [any('image/png' in output.get('data', {}) for output in outputs) for outputs in shown]
    assert pictures == [False, False, True, True, True, False]
    assert (tmp_path / 'run' / 'epoch_1.pth').is_file()
    first, again = (next(o.text for o in reversed(shown[n]) if o.output_type == 'stream') for n in (3, 5))
    assert first.splitlines()[-1].split(')')[0] == again.splitlines()[-1].split(')')[0]  # as many boxes
