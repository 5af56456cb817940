"""``mmsoft train config.py``: the tools as one command, for users of pip, who have no ``tools/`` at hand.

A command runs the script of tools/ that a checkout, or the installed package, holds: options are the script's own.
"""

import argparse
import ast
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

import mmsoft
from mmsoft.engine.cli import run_tool
from mmsoft.files import shipped

# Command -> script; those whose script is not there, research in an installed package, are left out.
SCRIPTS = dict(
    train='train',
    test='test',
    predict='predict',
    export='export',
    browse='browse_dataset',
    flops='get_flops',
    convert='convert_checkpoint',
    linearize='linearize',
    publish='publish_checkpoint',
    config='print_config',
    logs='analyze_logs',
    visualize='visualize',
    zoo='model_zoo',
    benchmark='benchmark',
)
OWN = dict(configs='List the shipped configs, or copy one with its bases.', env='Report what is installed, and faults.')


def main() -> None:
    """The console command."""
    commands = _commands()
    first, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ('--help', [])
    if first in ('-h', '--help'):
        width = max(map(len, commands))
        print('usage: mmsoft COMMAND ...\n\nLinear-attention backbones for OpenMMLab and timm.\n\ncommands:')
        print('\n'.join(f'  {name:<{width}}  {about}' for name, about in commands.items()))
        print('\n`mmsoft COMMAND --help` tells the options of one.')
    elif first == '--version':
        print(f'mmsoft {mmsoft.__version__}')
    elif first not in commands:
        near = get_close_matches(first, commands, 1)
        meant = f'; did you mean {near[0]}?' if near else ''
        sys.exit(f'error: mmsoft has no command {first!r}{meant}; it has {", ".join(commands)}')
    else:
        sys.argv = [f'mmsoft {first}', *rest]
        if first == 'env':
            from mmsoft.env import main as report

            sys.exit(report())
        script = _script(first) if first in SCRIPTS else Path(__file__)
        run_tool((lambda: _run(script, first)) if first in SCRIPTS else configs, script.parent)


def _commands() -> dict[str, str]:
    """Command -> one line on it, which is the first of its script."""
    scripts = {name: _script(name) for name in SCRIPTS}
    return {name: _first_line(script) for name, script in scripts.items() if script.is_file()} | OWN


def _script(command: str) -> Path:
    return shipped('tools') / f'{SCRIPTS[command]}.py'


def _first_line(script: Path) -> str:
    return (ast.get_docstring(ast.parse(script.read_text(encoding='utf-8'))) or '').partition('\n')[0]


def _run(script: Path, command: str) -> None:
    """Call the script's ``main``, with the script's folder in front of the path, as where Python runs it.

    Its help has the example as it is typed here: shipped configs are found by their names.
    """
    sys.path.insert(0, str(script.parent))
    spec = importlib.util.spec_from_file_location(f'mmsoft_tool_{script.stem}', script)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    example = (module.__doc__ or '').replace(f'python tools/{script.name}', f'mmsoft {command}')
    module.__doc__ = re.sub(r'configs/(\w+)\.py', r'\1', example)
    module.main()


def configs() -> None:
    """The command of that name."""
    parser = argparse.ArgumentParser(description=OWN['configs'])
    parser.add_argument('words', nargs='*', metavar='NAME', help='list names that hold every one of these')
    parser.add_argument('--copy', type=Path, metavar='FOLDER', help='copy the config NAME there, with its bases')
    args = parser.parse_args()
    if args.copy is None:
        folder = shipped('configs')
        names = sorted(file.stem for file in folder.glob('*.py'))
        found = [name for name in names if all(word in name for word in args.words)]
        if not found:
            raise ValueError(f'no shipped config holds {" and ".join(args.words)} in its name; there are {len(names)}')
        print('\n'.join(found))
    elif len(args.words) != 1:
        raise ValueError(f'--copy takes the name of one config; got {" ".join(args.words) or "none"}')
    else:
        print('\n'.join(str(path) for path in copy_config(args.words[0], args.copy)))


def copy_config(name: str, folder: Path) -> list[Path]:
    """Copy a shipped config and its bases below ``folder``, each to its place; where they are, the config first."""
    root, config = shipped('configs').resolve(), Path(mmsoft.config_path(name)).resolve()
    sources = {file: folder / file.relative_to(root) for file in _with_bases(config)}
    for source, target in sources.items():
        if target.exists() and target.read_bytes() != source.read_bytes():
            raise FileExistsError(f'{str(target)!r} is there and differs: choose another folder for --copy')
    for source, target in sources.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    return list(sources.values())


def _with_bases(config: Path) -> Iterator[Path]:
    """The file, and those that its ``_base_`` names, which are read and not run."""
    yield config
    for node in ast.parse(config.read_text(encoding='utf-8')).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == '_base_':
            bases: str | Sequence[str] = ast.literal_eval(node.value)
            for base in [bases] if isinstance(bases, str) else bases:
                yield from _with_bases((config.parent / base).resolve())
