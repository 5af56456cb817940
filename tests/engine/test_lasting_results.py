"""No picture ends a run of predictions, whatever it is called; what was found stays, whole, whatever ends the run."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote_to_bytes

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from small_runs import ENVIRONMENT, command, dump, run, small_config

from mmsoft.engine.predict import predict
from mmsoft.engine.results import Results
from mmsoft.engine.tasks import CLASSIFICATION

pytestmark = pytest.mark.slow

NOISE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)


def write(path: Path, image: np.ndarray = NOISE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode('.png', image)[1])
    return path


@pytest.fixture(scope='module')
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, Path]]]:
    """Method -> config and weights of a narrow model that is sure of nothing and tells of everything."""
    found = {}
    for method in ('retinanet', 'classifier', 'upernet'):
        folder = tmp_path_factory.mktemp(method)
        cfg = small_config(method, folder)
        if method == 'retinanet':
            cfg.model.test_cfg.update(score_thr=0.0, max_per_img=5)
        init_default_scope(cfg.default_scope)
        torch.manual_seed(0)
        torch.save(MODELS.build(cfg.model).state_dict(), folder / 'w.pth')
        found[method] = dump(cfg, folder), folder / 'w.pth'
    return found


def test_names_and_pictures_of_all_kinds(made: dict, tmp_path: Path) -> None:
    """A name that is not UTF-8 ended the process in OpenCV; a picture without rows, or of no bytes, ended the run."""
    pictures, out = tmp_path / 'pictures', tmp_path / 'out'
    wild = [b'caf\xe9.png', b'line\nbreak.png', b'\x1b[31mred.png', 'Stra\u00dfe.png'.encode(), b'x' * 250 + b'.png']
    for name in (*wild, b'A.png', b'a.png', b'sub/plain.png', b'grey.pgm'):
        write(pictures / os.fsdecode(name))
    write(pictures / 'flat.png', np.zeros((1, 5000, 3), np.uint8))
    (pictures / 'empty.jpg').touch()
    (pictures / os.fsdecode(b'clip\xff.avi')).write_bytes(b'no video')
    done = run('predict', *made['retinanet'], pictures, '--out-dir', out)
    faults = {line.split(' ', 1)[0]: line.split(' ', 1)[1] for line in done.stdout.splitlines() if ' skipped: ' in line}
    assert set(faults) == {str(pictures / name) for name in ('flat.png', 'empty.jpg', r'clip\xff.avi')}
    assert faults[str(pictures / 'flat.png')].startswith('cannot be predicted, skipped: ')
    assert 'names in UTF-8 alone' in faults[str(pictures / r'clip\xff.avi')]
    assert '9 pictures and frames predicted, 3 files at fault' in done.stdout

    text = (out / 'results.json').read_bytes().decode('ascii')
    assert '\\ud' not in text  # halves of characters, which strict readers refuse
    entries = json.loads(text)
    names = {unquote_to_bytes(entry.get('file_name_bytes') or '') or entry['file_name'].encode() for entry in entries}
    assert names == {*wild, b'A.png', b'a.png', b'sub/plain.png', b'grey.pgm'}
    assert not (out / 'results.jsonl').exists()
    drawn = [path for path in (out / 'drawn').rglob('*') if path.is_file()]
    assert len(drawn) == len({str(path).casefold() for path in drawn}) == 9  # also where A.png is a.png
    assert all(cv2.imread(str(path)).shape == NOISE.shape for path in drawn)
    assert {'A.png', 'Straße.png', 'grey.pgm.png', 'sub/plain.png'} <= {
        str(path.relative_to(out / 'drawn')) for path in drawn
    }


def test_label_maps_and_frames_do_not_meet(made: dict, tmp_path: Path) -> None:
    """Frames of a.avi lie where the pictures of a folder a would."""
    write(tmp_path / 'in' / 'a' / '000000.png', np.full((20, 20, 3), 9, np.uint8))
    writer = cv2.VideoWriter(str(tmp_path / 'in' / 'a.avi'), cv2.VideoWriter_fourcc(*'MJPG'), 10, (64, 48))
    writer.write(NOISE)
    writer.release()
    config, weights = made['upernet']
    summary = predict(Config.fromfile(config), weights, [str(tmp_path / 'in')], tmp_path / 'out', 'cpu')
    assert summary == (2, {})
    maps = [cv2.imread(str(path), cv2.IMREAD_UNCHANGED) for path in (tmp_path / 'out' / 'labels').rglob('*.png')]
    assert sorted(labels.shape for labels in maps) == [(20, 20), (48, 64)]
    assert {path.name for path in (tmp_path / 'out' / 'drawn').rglob('*.*')} == {'000000.png', 'a.avi.mp4'}


def test_memory_that_runs_out_is_one_pictures_fault(
    made: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in 'abc':
        write(tmp_path / 'in' / f'{name}.png', NOISE if name != 'b' else NOISE[:40])

    def draw(image: np.ndarray, *args: object) -> np.ndarray:
        if len(image) == 40:
            raise MemoryError
        return image

    monkeypatch.setattr(CLASSIFICATION, 'draw', draw)
    config, weights = made['classifier']
    summary = predict(Config.fromfile(config), weights, [str(tmp_path / 'in')], tmp_path / 'out', 'cpu')
    assert summary == (3, {str(tmp_path / 'in' / 'b.png'): 'is predicted, but cannot be drawn: MemoryError'})
    entries = json.loads((tmp_path / 'out' / 'results.json').read_text())
    assert [entry['file_name'] for entry in entries] == ['a.png', 'b.png', 'c.png']


def test_a_fault_of_all_pictures_ends_the_run(made: dict, tmp_path: Path) -> None:
    """Also: numbers that JSON does not have are no results."""
    for number in range(102):
        write(tmp_path / 'in' / f'{number:03d}.png')
    config, weights = made['classifier']
    broken = {name: value * (float('nan') if 'head' in name else 1) for name, value in torch.load(weights).items()}
    torch.save(broken, tmp_path / 'nan.pth')
    with pytest.raises(RuntimeError, match=r'predicting failed 100 times in a row.*not finite'):
        predict(Config.fromfile(config), tmp_path / 'nan.pth', [str(tmp_path / 'in')], tmp_path / 'out', 'cpu')
    assert json.loads((tmp_path / 'out' / 'results.json').read_text()) == []


def test_a_full_disk_ends_the_run_at_once(made: dict, tmp_path: Path) -> None:
    """Files may not grow beyond 5 kB; a drawing is larger."""
    for name in 'abc':
        write(tmp_path / 'in' / f'{name}.png')
    done = subprocess.run(
        command('predict', *made['classifier'], tmp_path / 'in', '--out-dir', tmp_path / 'out'),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)),
    )
    assert done.returncode == 1
    assert 'error: [Errno 27] File too large' in done.stderr
    assert 'Traceback' not in done.stderr
    assert [e['file_name'] for e in json.loads((tmp_path / 'out' / 'results.json').read_text())] == ['a.png']
    assert [path.name for path in (tmp_path / 'out').rglob('*.*')] == ['results.json']


def test_a_kill_leaves_whole_lines(made: dict, tmp_path: Path) -> None:
    for number in range(400):
        write(tmp_path / 'in' / f'{number:03d}.png')
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'results.json').write_text('["of an earlier run"]')
    process = subprocess.Popen(
        command('predict', *made['classifier'], tmp_path / 'in', '--out-dir', tmp_path / 'out'),
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    lines, deadline = tmp_path / 'out' / 'results.jsonl', time.monotonic() + 120
    while not lines.is_file() or lines.read_bytes().count(b'\n') < 5:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    assert not (tmp_path / 'out' / 'results.json').exists()
    whole = [json.loads(line) for line in lines.read_bytes().split(b'\n')[:-1]]
    assert [len(entries) for entries in whole] == [1] * len(whole)
    drawn = [path for path in (tmp_path / 'out' / 'drawn').iterdir() if path.suffix == '.png']
    assert len(drawn) >= len(whole) - 1
    assert all(cv2.imread(str(path)) is not None for path in drawn)


def test_the_list_is_that_of_the_lines(tmp_path: Path) -> None:
    results = Results(tmp_path)
    lines = [[dict(a=1), dict(b='é')], [], [dict(c=[1.5])]]
    for line in lines:
        results.add(line)
    results.file.write(b'[{"cut')  # by a full disk
    results.finish()
    assert (tmp_path / 'results.json').read_text() == json.dumps([entry for line in lines for entry in line])


def test_sources_are_not_drawn_over(made: dict, tmp_path: Path) -> None:
    source = write(tmp_path / 'out' / 'drawn' / 'x.png')
    (tmp_path / 'link').symlink_to(tmp_path / 'out')
    before = source.read_bytes()
    config, weights = made['classifier']
    with pytest.raises(ValueError, match='holds pictures of the data, which would be overwritten'):
        predict(Config.fromfile(config), weights, [str(source)], tmp_path / 'link', 'cpu')
    assert source.read_bytes() == before


def test_drawings_of_a_test_stay_below_their_folder(made: dict, tmp_path: Path) -> None:
    """Names with .., absolute ones, and two that differ by their suffix alone: every picture, and nothing else."""
    config, weights = made['retinanet']
    cfg = Config.fromfile(config)
    root = tmp_path / 'coco'
    shutil.copytree(cfg.data_root, root)
    annotations = root / 'annotations' / 'instances_val2017.json'
    content = json.loads(annotations.read_text())
    files = [root / 'val2017' / image['file_name'] for image in content['images']]
    places = ['../outside/a.png', str(tmp_path / 'absolute.jpg'), 'sub/b.jpg', 'sub/b.png']
    for image, file, place in zip(content['images'], files, places, strict=True):
        (root / 'val2017' / place).parent.mkdir(exist_ok=True)
        file.rename(root / 'val2017' / place)
        image['file_name'] = place
    annotations.write_text(json.dumps(content))
    cfg.test_dataloader.dataset.data_root = f'{root}/'
    cfg.test_evaluator.ann_file = str(annotations)
    config = dump(cfg, tmp_path, 'wild')
    before = {path: path.read_bytes() for path in tmp_path.rglob('*') if path.is_file()}
    shown = tmp_path / 'a' / 'shown'
    run('test', config, weights, '--work-dir', tmp_path / 'work', '--show-dir', shown)
    assert {path: path.read_bytes() for path in before} == before
    assert {path.relative_to(tmp_path).parts[0] for path in set(tmp_path.rglob('*.*')) - before.keys()} == {'a', 'work'}
    drawn = sorted(str(path.relative_to(shown)) for path in shown.rglob('*.*'))
    assert len(drawn) == 4
    assert drawn[-1] == 'sub/b.jpg'
    assert [name.rsplit('-', 1)[0] for name in drawn[:-1]] == ['a', 'absolute', 'b']
    refused = run('test', config, weights, '--work-dir', tmp_path / 'work', '--show-dir', root / 'val2017', check=False)
    assert 'holds pictures of the data, which would be overwritten' in refused.stderr
    assert {path: path.read_bytes() for path in before} == before
