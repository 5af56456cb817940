"""The console command: every tool by its name, quickly; configs for who has no checkout."""

import re
import subprocess
import sys

import pytest
from helpers import ROOT, first_on_path

from mmsoft import cli
from mmsoft.engine.config import is_config, load_config
from mmsoft.files import shipped


def mmsoft(*arguments, cwd):
    command = [sys.executable, '-m', 'mmsoft', *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=first_on_path(ROOT), capture_output=True, text=True)


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, 'argv', ['/bin/mmsoft', *map(str, arguments)])
    monkeypatch.setattr(sys, 'path', list(sys.path))
    cli.main()


def test_help_is_a_line_a_command_and_light(tmp_path):
    code = 'import sys; from mmsoft.cli import main; main(); print({"torch", "mmengine", "numpy"} & {*sys.modules})'
    run = subprocess.run(
        [sys.executable, '-c', code, '--help'], cwd=tmp_path, env=first_on_path(ROOT), capture_output=True, text=True
    )
    *lines, heavy = run.stdout.splitlines()
    assert heavy == 'set()', run.stderr
    told = {line.split()[0]: line.split()[1:] for line in lines if line.startswith('  ')}
    assert told.keys() == {*cli.SCRIPTS, 'configs', 'env'}
    assert all(len(words) > 3 for words in told.values())


def test_a_command_has_the_options_of_its_script(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit, match='0'):
        call(monkeypatch, 'convert', '--help')
    told = capsys.readouterr().out
    assert told.startswith('usage: mmsoft convert [-h] [--part ')
    assert '--trust-checkpoint' in told
    assert 'for example: mmsoft convert downloaded.pth' in told
    with pytest.raises(SystemExit, match='0'):
        call(monkeypatch, 'train', '--help')
    assert 'for example: mmsoft train retinanet_soft_pp_small_1x_coco --data' in capsys.readouterr().out
    with pytest.raises(SystemExit, match="error: config 'none"):
        call(monkeypatch, 'flops', 'none.py')
    with pytest.raises(SystemExit, match=r"has no command 'trian'; did you mean train\?; it has train, test, predict"):
        call(monkeypatch, 'trian')


def test_the_shell_completes_as_the_docs_tell(tmp_path):
    (line,) = re.findall(r'^complete -o default (.*) mmsoft$', (ROOT / 'docs' / 'training.md').read_text(), re.M)
    found = []
    for typed in ('tra', 'retinanet_soft_pp_tiny_1x'):
        script = f'mmsoft() {{ "{sys.executable}" -m mmsoft "$@"; }}; compgen {line} -- {typed}'
        done = subprocess.run(['bash', '-c', script], env=first_on_path(ROOT), capture_output=True, text=True)
        found += done.stdout.split()
    assert found == ['train', 'retinanet_soft_pp_tiny_1x_coco']


@pytest.mark.slow
def test_a_command_runs_from_anywhere(tmp_path):
    run = mmsoft('configs', 'retinanet_soft_pp_tiny_1x_coco', '--copy', 'own', cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    run = mmsoft('flops', 'own/retinanet_soft_pp_tiny_1x_coco.py', '--shape', 64, 96, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert 'bbox_head' in run.stdout


def test_a_shipped_config_is_found_by_its_name(tmp_path, monkeypatch):
    """Away from a checkout as well; a file of one's own goes first, and a path that is wrong finds no other file."""
    monkeypatch.chdir(tmp_path)
    name = 'retinanet_soft_pp_small_1x_coco'
    for word in (name, f'configs/{name}.py'):
        assert is_config(word)
        assert load_config(word).filename == str(shipped('configs') / f'{name}.py')
    (tmp_path / 'configs').mkdir()
    (tmp_path / 'configs' / f'{name}.py').write_text('model = dict(type="Own")\n')
    assert load_config(f'configs/{name}.py').model.type == 'Own'
    for word in (f'{name}.py', f'elsewhere/{name}.py', tmp_path / name, 'retinanet_softpp_small_1x'):
        with pytest.raises(FileNotFoundError, match=rf'does not exist .*; shipped, and found by name: {name}'):
            load_config(word)
    with pytest.raises(FileNotFoundError, match=r"config 'epoch_1\.pth' does not exist \(working directory '[^;]*'\)$"):
        load_config('epoch_1.pth')
    assert not is_config('epoch_1.pth')


def test_configs_are_listed_and_copied_whole(tmp_path, monkeypatch, capsys):
    call(monkeypatch, 'configs', 'mask_rcnn', '3x')
    assert capsys.readouterr().out.split() == sorted(
        file.stem for file in (ROOT / 'configs').glob('mask_rcnn_*_3x_*.py')
    )
    with pytest.raises(SystemExit, match='error: no shipped config holds yolo in its name'):
        call(monkeypatch, 'configs', 'yolo')
    for config in (ROOT / 'configs').glob('*.py'):
        target = tmp_path / config.stem
        assert cli.copy_config(config.stem, target)[0] == target / config.name
        assert load_config(target / config.name).to_dict() == load_config(config).to_dict()
    cli.copy_config(config.stem, target)  # the same again
    (target / config.name).write_text('changed = True\n')
    with pytest.raises(SystemExit, match='is there and differs: choose another folder'):
        call(monkeypatch, 'configs', config.stem, '--copy', target)
    assert (target / config.name).read_text() == 'changed = True\n'
    with pytest.raises(SystemExit, match='--copy takes the name of one config; got none'):
        call(monkeypatch, 'configs', '--copy', target)
