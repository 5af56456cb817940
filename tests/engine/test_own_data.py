"""``--data``: configs that follow a folder of one's own, and runs on it from the first command to the last."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import mmdet
import mmseg
import own_sets
import pytest
import torch
from helpers import TOOLS
from mmengine.config import Config
from mmengine.registry import DATASETS
from own_sets import FORMATS, NAMES
from small_runs import ENVIRONMENT, dump, run, small_config

import mmsoft
from mmsoft.datasets.layout import leaf_datasets
from mmsoft.datasets.own import OwnDataError
from mmsoft.engine import own_data
from mmsoft.engine.browse import browse, drawn_samples
from mmsoft.engine.config import check_data, load_config
from mmsoft.engine.heads import head_counts
from mmsoft.engine.own_data import check_options, use_own_data
from mmsoft.engine.parts import LOADERS
from mmsoft.engine.telling import in_words
from mmsoft.engine.training import evaluate

CASES = [
    ('mask_rcnn_soft_pp_tiny_1x_coco', 'coco', NAMES),
    ('retinanet_soft_pp_tiny_1x_coco', 'yolo', NAMES),
    ('upernet_soft_pp_tiny_160k_ade20k', 'colours', ['ground', *NAMES]),
    ('upernet_soft_pp_tiny_160k_ade20k', 'labelme', ['background', *sorted(NAMES)]),
    ('soft_pp_tiny_300e_in1k', 'csv', sorted(NAMES)),
]


def make(name: str, root: Path) -> Path:
    root.mkdir(parents=True)
    FORMATS[name](root)
    return root


@pytest.mark.parametrize(('config', 'name', 'classes'), CASES)
def test_a_config_follows_the_data_and_is_all_that_is_needed(config, name, classes, tmp_path, monkeypatch, capsys):
    cfg, root = load_config(mmsoft.config_path(config)), make(name, tmp_path / 'my set')
    monkeypatch.setattr(own_data, 'SAMPLES', 1)
    monkeypatch.chdir(tmp_path)
    use_own_data(cfg, 'my set', 'run')
    monkeypatch.chdir('/')
    derived = Config.fromfile(tmp_path / 'run' / f'{config}.py')
    assert derived.to_dict() == cfg.to_dict()
    assert check_data(derived, 'train', 'val', 'test') == []  # heads and evaluators fit
    if name == 'csv':
        assert derived.model.backbone.num_classes == len(classes)
        assert 4 * derived.train_dataloader.batch_size <= 43
        assert not derived.auto_scale_lr.enable  # scaled to 8 images of 1024, the lr would not leave its start
        share = (derived.train_dataloader.batch_size / 1024) ** 0.5  # and at 1e-3, all outputs become alike
        assert derived.optim_wrapper.optimizer.lr == pytest.approx(1e-3 * share)
        assert derived.custom_hooks[0].min_lr == pytest.approx(5e-5 * share)
        assert derived.model.mixup is None
        assert derived.train_dataloader.dataset.transform.auto_augment is None
    else:
        assert {count for _, count in head_counts(derived.model)} == {len(classes)}
        assert list(derived.val_dataloader.dataset.metainfo.classes) == classes
        assert list(derived.test_dataloader.dataset.metainfo.palette[0]) in [[0, 0, 0], [230, 23, 23]]
    if name == 'coco':
        assert derived.val_evaluator.metric == ['bbox', 'segm']
    (folder,) = (tmp_path / 'run' / 'data').iterdir()
    assert folder.name.startswith('my set-')
    assert (folder / 'samples.png').is_file()
    assert not (folder / 'samples_faults.jsonl').exists()
    told = capsys.readouterr().out
    assert (folder / 'found.md').read_text() in told
    assert all(f'\n| {label} |' in told for label in classes)
    assert str(root) in told


def zoo(library, name):
    return Config.fromfile(Path(library.__file__).with_name('.mim') / 'configs' / name)


def test_sets_that_a_config_joins_are_replaced_by_one(tmp_path, monkeypatch):
    """Of VOC's two years."""
    cfg = zoo(mmdet, 'pascal_voc/faster-rcnn_r50_fpn_1x_voc0712.py')
    assert len(list(leaf_datasets(cfg.train_dataloader.dataset))) == 2
    monkeypatch.setattr(own_data, 'SAMPLES', 1)
    parts = use_own_data(cfg, make('voc', tmp_path / 'set'), tmp_path / 'run')
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    assert len(dataset) == 3 * len(parts['train'])  # VOC's are gone through three times an epoch
    assert list(dataset.metainfo['classes']) == sorted(NAMES)


def test_samples_show_boxes_where_the_test_pipeline_reads_none(tmp_path, monkeypatch):
    cfg, drawn = zoo(mmdet, 'fpg/faster-rcnn_r50_fpg_crop640-50e_coco.py'), []
    monkeypatch.setattr(own_data, 'drawn_samples', lambda cfg, *about: drawn.append(cfg) or drawn_samples(cfg, *about))
    monkeypatch.setattr(own_data, 'SAMPLES', 1)
    use_own_data(cfg, make('coco', tmp_path / 'set'), tmp_path / 'run')
    (sample,) = [DATASETS.build(drawn[0].train_dataloader.dataset)[0]['data_samples']]
    assert len(sample.gt_instances.bboxes) == len(sample.gt_instances) > 0


@pytest.mark.parametrize(
    ('library', 'name', 'what'),
    [
        (mmdet, 'htc/htc_r50_fpn_1x_coco.py', 'maps of stuff beside boxes'),
        (mmdet, 'fast_rcnn/fast-rcnn_r50_fpn_1x_coco.py', 'proposals of another model'),
        (mmdet, 'panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py', 'segments of whole pictures'),
        (mmdet, 'sort/sort_faster-rcnn_r50_fpn_8xb2-4e_mot17halftrain_test-mot17halfval.py', 'films'),
        (mmdet, 'reid/reid_r50_8xb32-6e_mot17train80_test-mot17val20.py', 'films'),
        (mmseg, 'vpd/vpd_sd_4xb8-25k_nyu-480x480.py', 'maps of depth'),
    ],
)
def test_what_no_format_has_is_said_before_the_data_is_looked_at(library, name, what, tmp_path):
    with pytest.raises(ValueError, match=f'of the config reads {what}, which no format of --data has'):
        use_own_data(zoo(library, name), tmp_path, tmp_path / 'run')


def test_a_config_without_loaders_says_so(tmp_path):
    cfg = zoo(mmdet, 'retinanet/retinanet_r18_fpn_1x_coco.py')
    for name in LOADERS:
        cfg.pop(name)
    with pytest.raises(ValueError, match='the config has none of train_dataloader'):
        use_own_data(cfg, tmp_path, tmp_path / 'run')


def test_data_that_is_tested_alone_is_tested_whole_unless_it_was_trained_on(tmp_path, monkeypatch):
    monkeypatch.setattr(own_data, 'SAMPLES', 1)
    config, root = mmsoft.config_path('retinanet_soft_pp_tiny_1x_coco'), make('labelme', tmp_path / 'set')

    def tested(run_dir: Path) -> int:
        run_dir.mkdir(exist_ok=True)
        meta = dict(dataset_meta=dict(classes=[*sorted(NAMES), 'more']))
        torch.save(dict(meta=meta, state_dict={}), run_dir / 'epoch_1.pth')
        cfg = load_config(config)
        use_own_data(cfg, root, tmp_path / 'test', str(run_dir / 'epoch_1.pth'))
        content = json.loads(Path(cfg.test_dataloader.dataset.ann_file).read_text())
        assert [category['name'] for category in content['categories']] == [*sorted(NAMES), 'more']
        return len(content['images'])

    assert tested(tmp_path / 'other') == 6
    parts = use_own_data(load_config(config), root, tmp_path / 'run')
    assert {part: len(pictures) for part, pictures in parts.items()} == dict(train=4, val=2, test=0)
    assert all(Path(picture).is_file() for pictures in parts.values() for picture in pictures)
    assert tested(tmp_path / 'run') == 2


def test_a_run_keeps_its_config_and_annotations(tmp_path):
    (tmp_path / 'last_checkpoint').write_text('epoch_1.pth')
    cfg = load_config(mmsoft.config_path('retinanet_soft_pp_tiny_1x_coco'))
    with pytest.raises(ValueError, match='has the config and the annotations of a run'):
        evaluate(cfg, 'epoch_1.pth', work_dir=str(tmp_path), data='set')
    with pytest.raises(ValueError, match='name another folder'):
        browse(cfg, tmp_path, data='set')
    assert [path.name for path in tmp_path.iterdir()] == ['last_checkpoint']


@pytest.mark.parametrize(
    'key', ['data_root', 'val_evaluator.metric', 'train_dataloader.dataset.ann_file', 'model.bbox_head.num_classes']
)
def test_what_data_sets_is_no_option(key):
    with pytest.raises(ValueError, match=f'--data sets {key} itself'):
        check_options({key: 1})
    check_options({'train_dataloader.batch_size': 1, 'train_dataloader.dataset.pipeline.0.x': 1})
    with pytest.raises(ValueError, match='leave out --data, or --demo'):
        check_options({}, demo=True)


def test_a_set_that_is_refused_leaves_no_config(tmp_path):
    cfg = load_config(mmsoft.config_path('mask_rcnn_soft_pp_tiny_1x_coco'))
    with pytest.raises(OwnDataError, match='objects with a box and no outline'):
        use_own_data(cfg, make('voc', tmp_path / 'set'), tmp_path / 'run')
    assert not list(tmp_path.rglob('run/**/*.*'))


def test_times_in_words():
    assert [in_words(seconds) for seconds in (0.2, 90, 300, 4800, 200_000)] == [
        *('1 s', '90 s', '5 min', '1 h 20 min', '2 days 8 h')
    ]


@pytest.mark.slow
def test_from_a_folder_to_detections(tmp_path):
    """Train, test and predict: the commands after the first are those that it names."""
    cfg, root = small_config('mask_rcnn', tmp_path / 'world', epochs=2), make('coco', tmp_path / 'my photos')
    before = {path: path.read_bytes() for path in root.rglob('*') if path.is_file()}
    work = tmp_path / 'run'
    done = run('train', dump(cfg, tmp_path), '--data', root, '--work-dir', work, '--epochs', 2)
    assert 'this run takes about' in done.stdout + done.stderr
    steps = done.stdout[done.stdout.index('What to type next') :].splitlines()[1:]
    script, config, weights = steps[0].split()[1:]
    assert Path(script).name == 'test.py'
    assert Path(config) == work / 'small.py'
    shutil.rmtree(tmp_path / 'world')  # the run needs nothing but the set
    run('test', config, weights)
    metrics = json.loads((work / 'metrics.json').read_text())['metrics']
    assert all(any(name in metric for metric in metrics) for name in NAMES)
    own_sets.write_picture(tmp_path / 'new.png', next(own_sets.drawn(1)).image)
    run('predict', weights, tmp_path / 'new.png', '--out-dir', tmp_path / 'found')
    categories = json.loads((tmp_path / 'found' / 'categories.json').read_text())['categories']
    assert [category['name'] for category in categories] == NAMES
    assert {path: path.read_bytes() for path in root.rglob('*') if path.is_file()} == before


@pytest.mark.slow
def test_two_processes_follow_one_folder(tmp_path):
    """One of them looks, and says what is wrong, though torchrun ends it as soon as the other has left."""
    cfg, work = small_config('retinanet', tmp_path / 'world'), tmp_path / 'run'
    cfg.model.test_cfg.score_thr = 0.0
    config = dump(cfg, tmp_path)
    bad, good = (make('coco', tmp_path / name) for name in ('bad', 'good'))
    (file,) = bad.glob('*.json')
    content = json.loads(file.read_text())
    content['annotations'][0]['category_id'] = 999
    file.write_text(json.dumps(content))
    arguments = ['bash', TOOLS / 'dist_train.sh', config, '2', '--data', bad, '--work-dir', work]
    environment = dict(ENVIRONMENT, PYTHON=sys.executable, MASTER_PORT='29541')
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=240)
    text = done.stdout + done.stderr
    assert done.returncode == 1
    assert text.count('error: ') == text.count('its category_id is 999, which is not listed') == 1, text
    assert 'Traceback' not in text
    assert '--resume' not in text

    run('train', config, '--data', good, '--work-dir', work, '--epochs', 1, processes=2, port=29542)
    metrics = ('test', work / config.name, work)
    run(*metrics, processes=2, port=29543)
    together = json.loads((work / 'metrics.json').read_text())
    assert together['metrics']
    run(*metrics)
    assert json.loads((work / 'metrics.json').read_text()) == together
