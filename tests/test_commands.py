"""The commands of the documentation and of --help: each names a tool, options and configs that are there."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import ROOT, TOOLS

from mmsoft.cli import OWN, SCRIPTS

PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *sorted((ROOT / 'docs').glob('**/*.md'))]
PLACES = [*PAGES, *sorted(TOOLS.glob('*.py'))]
SCRIPT = re.compile(r'(?:[A-Z_]+=\S+ )*(?:python )?tools/(\w+\.(?:py|sh))(?= |$)|mmsoft (\w+)(?= |$)')
BLOCK, INLINE = re.compile(r'^ *```bash\n(.*?)```', re.M | re.S), re.compile(r'`([^`\n]+)`')
DOCSTRING = re.compile(r'^for example: (.+)$', re.M)


def commands(place: Path) -> Iterator[str]:
    """The lines of bash blocks, code within a sentence, and the example of a tool."""
    text = place.read_text(encoding='utf-8')
    if place.suffix == '.py':
        yield from DOCSTRING.findall(text)
        return
    for block in BLOCK.findall(text):
        yield from block.replace('\\\n', ' ').splitlines()
    yield from INLINE.findall(BLOCK.sub('', text))


def calls(place: Path) -> Iterator[tuple[Path, list[str]]]:
    """The script and the arguments of each command that is one of ours."""
    for command in commands(place):
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
    shared = {'--help'} | ({'--import'} if 'add_import' in source else set())
    return shared | set(re.findall(r"'(--[\w-]+)'", source))


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
