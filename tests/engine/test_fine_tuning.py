"""``--fine-tune`` of detectors and segmentors: all is kept but layers of classes that differ."""

import pytest
import torch
from small_runs import dump, run, small_config

from mmsoft import Predictor
from mmsoft.checkpoints import read_checkpoint
from mmsoft.datasets.miniature import write_world
from mmsoft.engine.config import load_config
from mmsoft.engine.fine_tuning import class_layers, fresh_layers, shapes_of
from mmsoft.engine.parts import LOADERS
from mmsoft.engine.training import train

CLASSES = {
    'retinanet': {'bbox_head.retina_cls'},
    'mask_rcnn': {'roi_head.bbox_head.fc_cls', 'roi_head.bbox_head.fc_reg', 'roi_head.mask_head.conv_logits'},
    'upernet': {'decode_head.conv_seg', 'auxiliary_head.conv_seg'},
}
TWO = ('kite', 'book')


def tensors_of(layers):
    return {f'{layer}.{part}' for layer in layers for part in ('weight', 'bias')}


@pytest.mark.parametrize('method', CLASSES)
def test_layers_of_classes_are_found(method, tmp_path):
    cfg = small_config(method, tmp_path, train=2)
    before = cfg.pretty_text
    assert class_layers(cfg) == tensors_of(CLASSES[method])
    assert cfg.pretty_text == before


def name_classes(cfg, classes):
    for name in LOADERS:
        cfg[name].dataset.metainfo = dict(classes=classes)
    return cfg


def test_what_is_kept_depends_on_names_and_numbers(tmp_path):
    cfg, path = small_config('retinanet', tmp_path, train=2), tmp_path / 'a.pth'
    weights = {name: torch.zeros(shape) for name, shape in shapes_of(cfg).items()}
    layers = tensors_of(CLASSES['retinanet'])

    def fresh(cfg, **meta):
        torch.save(dict(state_dict=weights, meta=meta), path)
        return fresh_layers(cfg, str(path))

    assert fresh(cfg) == set()
    assert fresh(cfg, dataset_meta=dict(CLASSES=TWO * 40)) == layers
    assert fresh(name_classes(cfg, TWO)) == set()  # heads are as wide as before: the checkpoint tells no names
    cfg.model.bbox_head.num_classes = 2
    assert fresh(cfg) == layers
    torch.save({name: value for name, value in weights.items() if name.startswith('backbone.')}, path)
    with pytest.raises(ValueError, match=r'holds a backbone or a classifier: start from that with --cfg-options model'):
        fresh_layers(cfg, str(path))


@pytest.mark.slow
@pytest.mark.parametrize('method', ['retinanet', 'upernet'])
def test_another_data_set_keeps_all_but_its_classes(method, tmp_path):
    """With pictures of another size, another length and batch; and whoever gets the result needs nothing else."""
    cfg = small_config(method, tmp_path / 'data', train=4, epochs=1)
    train(cfg, work_dir=str(tmp_path / 'first'))
    first = next((tmp_path / 'first').glob('*_*.pth'))
    cfg = small_config(method, tmp_path / 'data', train=4, epochs=1)
    if method == 'retinanet':
        name_classes(cfg, TWO)
    else:
        root = write_world('ade20k', tmp_path / 'data', train=4, val=2, size=(64, 96))
        for name, part in zip(LOADERS, ('training', 'validation', 'validation'), strict=True):
            prefix = dict(img_path=f'images/{part}', seg_map_path=f'annotations/{part}')
            cfg[name].dataset.update(type='ADE20KDataset', data_root=str(root), data_prefix=prefix)
    cfg.optim_wrapper.optimizer.lr = 0.0  # what is kept stays visible
    options = '--img-size', 96, 64, '--epochs', 2, '--batch', 4
    done = run('train', dump(cfg, tmp_path), '--work-dir', tmp_path / 'own', '--fine-tune', first, *options)
    count = 2 if method == 'retinanet' else 150
    assert f'bbox_head.num_classes={count}' in done.stdout or f'decode_head.num_classes={count}' in done.stdout
    assert f'fresh      {2 * len(CLASSES[method]):>8}  kept at their random start: of other classes' in done.stdout
    assert 'resized           4' in done.stdout
    assert '--auto-scale-lr scales it' in done.stdout
    last = tmp_path / 'own' / ('epoch_2.pth' if method == 'retinanet' else 'iter_2.pth')
    before, after = (read_checkpoint(path)['state_dict'] for path in (first, last))
    changed = {name for name, value in after.items() if value.shape != before[name].shape}
    tables = {name for name in changed if name.endswith('position.table')}
    assert changed == tables | tensors_of(CLASSES[method])
    assert after['backbone.stages.0.position.table'].shape[1:3] == (24, 16)
    kept = {name for name in after.keys() - changed if name.endswith(('weight', 'bias'))}  # statistics go on
    assert len(kept) > 100
    assert all(torch.equal(after[name], before[name]) for name in kept)
    cfg = load_config(tmp_path / 'own' / 'small.py')
    assert cfg.train_dataloader.batch_size == 4
    assert len(Predictor(last, device='cpu').meta['classes']) == count


def test_bad_numbers_are_one_sentence(tmp_path):
    for options, said in (
        (dict(batch=0), '--batch 0: it must be 1 or more'),
        (dict(epochs=0), '--epochs must be 1 or more; got 0'),
        (dict(fine_tune='x.pth', pretrained=False), 'exclude each other'),
        (dict(linear_probe='x.pth'), '--linear-probe: for classifiers only; for RetinaNet take --fine-tune'),
    ):
        with pytest.raises(ValueError, match=said):
            train(small_config('retinanet', tmp_path, train=2), work_dir=str(tmp_path / 'run'), **options)
