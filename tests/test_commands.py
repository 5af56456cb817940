"""The commands of the documentation and of --help name what is there; those of a new user's pages run."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import own_sets
import pytest
import torch
from forking import run_forked
from helpers import ROOT, TOOLS, exports_whole_models
from mmengine.registry import MODELS, init_default_scope
from small_runs import ENVIRONMENT, dump, small_checkpoint, small_config
from teachers import pvt_file

from mmsoft.cli import OWN, SCRIPTS

PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *sorted((ROOT / 'docs').glob('**/*.md'))]
PLACES = [*PAGES, *sorted(TOOLS.glob('*.py'))]
SCRIPT = re.compile(r'(?:[A-Z_]+=\S+ )*(?:python )?tools/(\w+\.(?:py|sh))(?= |$)|mmsoft (\w+)(?= |$)')
BLOCK, INLINE = re.compile(r'^ *```bash\n(.*?)```', re.M | re.S), re.compile(r'`([^`\n]+)`')
SHARED = dict(add_import='--import', add_img_size='--img-size')  # of mmsoft.engine.cli
DOCSTRING = re.compile(r'^for example: (.+)$', re.M)


def commands(place: Path, inline: bool = True) -> Iterator[str]:
    """The lines of bash blocks, code within a sentence if ``inline``, and the example of a tool."""
    text = place.read_text(encoding='utf-8')
    if place.suffix == '.py':
        yield from DOCSTRING.findall(text)
        return
    for block in BLOCK.findall(text):
        yield from block.replace('\\\n', ' ').splitlines()
    if inline:
        yield from INLINE.findall(BLOCK.sub('', text))


def calls(place: Path, inline: bool = True) -> Iterator[tuple[Path, list[str]]]:
    """The script and the arguments of each command that is one of ours."""
    for command in commands(place, inline):
        found = SCRIPT.match(command.strip())
        if found:
            script, name = found.groups()
            assert script or name in {**SCRIPTS, **OWN}, f'{place}: mmsoft has no command {name!r}'
            own = ROOT / 'mmsoft' / ('env.py' if name == 'env' else 'cli.py')
            path = TOOLS / script if script else TOOLS / f'{SCRIPTS[name]}.py' if name in SCRIPTS else own
            yield path, shlex.split(command.strip()[found.end() :], comments=True)


def options(script: Path) -> set[str]:
    """Those that a script defines; a shell script hands its own to the tool that it starts."""
    if script.suffix == '.sh':
        script = TOOLS / f'{script.stem.rpartition("_")[2].replace("run", "train")}.py'
    source = script.read_text(encoding='utf-8')
    shared = {option for function, option in SHARED.items() if f'{function}(' in source}
    return {'--help'} | shared | set(re.findall(r"'(--[\w-]+)'", source))


@pytest.mark.parametrize('place', PLACES, ids=lambda place: place.relative_to(ROOT).as_posix())
def test_commands_name_what_is_there(place):
    for script, arguments in calls(place):
        assert script.is_file(), f'{place}: no tool {script.name}'
        given = {argument.partition('=')[0] for argument in arguments if argument.startswith('--')}
        assert given <= options(script), f'{script.name} has no {given - options(script)}'
        configs = [name for name in arguments if name.startswith('configs/')]
        missing = [name for name in configs if not (ROOT / name).is_file()]
        assert not missing, f'{script.name} {missing}'


def test_commands_are_found():
    """The test above has something to test, and sees what is wrong."""
    assert len([*calls(ROOT / 'README.md')]) > 6
    assert all([*calls(tool)] for tool in TOOLS.glob('*.py'))
    assert '--fine-tune' in options(TOOLS / 'slurm_train.sh')
    assert '--data' not in options(TOOLS / 'predict.py')


SWIN = dict(type='mmdet.SwinTransformer', embed_dims=16, depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8), window_size=4)
# What keeps a command short: to learn a few pictures by heart takes 1,000 iterations.
SHORT = dict(
    linearize=('--steps', '1', '1', '--batch-size', '2', '--workers', '0', '--no-report'), train=('--epochs', '2')
)


# Page -> the kind of model, its narrow config, and that of a teacher with softmax.
USED = {
    'README': ('retinanet', 'configs/retinanet_soft_pp_small_1x_coco', 'swin_config'),
    'docs/quickstart': ('retinanet', 'retinanet_soft_pp_small_1x_coco', None),
    'docs/own_data': ('mask_rcnn', 'configs/mask_rcnn_soft_pp_tiny_1x_coco', None),
    'docs/linearize': ('mask_rcnn', None, 'mask-rcnn_swin-t_config'),
    'docs/deploy': ('classifier', None, None),
}


def new_user(page, place):
    """In a folder what the page names: narrow configs, data, pictures, checkpoints."""
    method, config, teacher = USED[page]
    for index, (image, _) in enumerate(own_sets.drawn(2)):
        own_sets.write_picture(place / 'photos' / f'{index}.jpg', image)
    own_sets.coco(place / 'my_set', 6)
    if page in ('docs/own_data', 'docs/deploy'):
        small_checkpoint(method, place / 'world')[1].rename(place / 'epoch_12.pth')
    cfg = small_config(method, place / 'world', train=4, epochs=12)
    if config:
        dump(cfg, (place / config).parent, Path(config).name)
    if teacher:
        cfg.model.backbone, cfg.model.neck.in_channels = dict(SWIN), [16, 32, 64, 128]
        dump(cfg, place, teacher)
        init_default_scope(cfg.default_scope)
        weights = dict(state_dict=MODELS.build(cfg.model).state_dict())
        torch.save(weights, place / ('swin.pth' if page == 'README' else 'epoch_12.pth'))
    if page == 'docs/linearize':
        torch.save(pvt_file((64, 64, 64, 64)), place / 'pvt_tiny.pth')


@pytest.mark.slow
@exports_whole_models
def test_the_commands_of_a_new_users_pages_run(tmp_path):
    typed = []
    for page in USED:
        new_user(page, tmp_path / page)
        for script, arguments in calls(ROOT / f'{page}.md', inline=False):
            downloads = any('timm:' in argument for argument in arguments)
            if downloads or (page, script.stem) == ('README', 'export'):  # which is deploy's, and takes longest
                continue
            short = SHORT.get(script.stem, ()) if '--demo' not in arguments else ()
            copied = ['copied' if argument == '.' else argument for argument in arguments]  # the narrow one stays
            typed.append((str(tmp_path / page), str(script), [*copied, *short]))
    assert len(typed) >= 19
    done = run_forked([str(ROOT / 'tests/support/typed.py'), json.dumps(typed)], environments=[ENVIRONMENT])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert len([*tmp_path.glob('docs/own_data/**/epoch_2.pth')]) == 2
    made = [
        *('README/run/metrics.json', 'README/found/results.json', 'README/linear/linear.pth'),
        'docs/quickstart/copied/retinanet_soft_pp_small_1x_coco.py',
        'docs/quickstart/run/metrics.json',
        'docs/quickstart/found/results.json',
        'docs/own_data/looked',
        'docs/own_data/found/results.json',
        'docs/deploy/found/results.json',
        'docs/linearize/linear/linear.pth',
    ]
    assert [name for name in made if not (tmp_path / name).exists()] == []
