"""``--benchmark``: the checkpoint opens as the export opened it, and a process that ends says why."""

import pytest
import torch
from known_models import write_means
from mmengine.registry import MODELS, init_default_scope
from small_runs import small_config

from mmsoft.exporting.benchmark import compare_cost


@pytest.mark.slow
def test_the_checkpoint_opens_as_the_export_opened_it(tmp_path):
    cfg, checkpoint = small_config('classifier', tmp_path, train=1), str(tmp_path / 'model.pth')
    init_default_scope(cfg.default_scope)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), checkpoint)
    file = write_means(tmp_path / 'means.onnx')
    _, torchs, files = compare_cost(checkpoint, file, cfg, 1, options=None).splitlines()
    assert torchs.split()[0] == 'checkpoint'
    assert files.split()[0] == 'onnx'
    assert 5 < float(files.split()[2]) < float(torchs.split()[2]) / 2, 'the file needs no torch'
    torch.save(dict(torch.load(checkpoint), meta=dict(cfg=cfg.pretty_text)), checkpoint)
    with pytest.raises(
        RuntimeError, match=r'the file is written, but the benchmark of the checkpoint ended: .*nonsense'
    ):
        compare_cost(checkpoint, file, None, 1, options={'nonsense.of': 3})
