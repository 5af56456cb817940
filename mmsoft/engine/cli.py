"""What the tools share."""

import argparse
import importlib
import io
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mmsoft.files import disk_is_full, shown

PACKAGE = Path(__file__).parent.parent
IMG_SIZE = '--img-size'
TOLD = (OSError, ValueError, RuntimeError, ImportError, TypeError)


def run_tool(main: Callable[[], None], tools: Path | None = None) -> None:
    """Call ``main``; our own errors, and those of a full disk, are told in their own words, with no traceback.

    Our own are raised in the package, or in a package below the folder of ``tools``: by default that of ``main``.
    """
    tools = tools or Path(main.__code__.co_filename).parent
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')  # names of files hold what a terminal may not take
    try:
        main()
    except TOLD as error:
        chain = list(_chain(error))  # MMEngine tells of an error in what it builds by another one
        told = next((link for link in chain if _is_ours(link, tools)), None) or next(filter(disk_is_full, chain), None)
        if told is None:
            raise
        sys.exit(shown(f'error: {told}', keep='\n'))


def add_img_size(parser: argparse.ArgumentParser) -> None:
    """``--img-size``, one number or two; ``numbers_joined`` makes one word of them."""
    parser.add_argument(
        IMG_SIZE,
        type=_sides,
        metavar='PIXELS',
        help='another height and width of the pictures, as in --img-size 320 480, or one number for both',
    )


def numbers_joined(words: Sequence[str], option: str = IMG_SIZE) -> list[str]:
    """``--img-size 320 480 config.py`` with ``320x480``: argparse would take any number of words, the config too."""
    joined: list[str] = []
    for word in words:
        before = joined[-2] if len(joined) > 1 else ''
        if word.isdecimal() and len(before) > 2 and option.startswith(before):
            joined[-1] += f'x{word}'
        else:
            joined.append(word)
    return joined


def _sides(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split('x')))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'a height and a width, or one number for both; got {text!r}') from error


def add_import(parser: argparse.ArgumentParser) -> None:
    """``--import``, for tools that read no config, whose custom_imports would say it."""
    parser.add_argument(
        '--import',
        dest='imports',
        type=_imported,
        nargs='+',
        metavar='MODULE',
        help='modules that register attentions or families of your own, found as Python finds them (PYTHONPATH)',
    )


def _imported(name: str) -> str:
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise argparse.ArgumentTypeError(f'{name!r} cannot be imported: {error}') from error
    return name


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that it came of."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_ours(error: BaseException, tools: Path) -> bool:
    """One that nobody raised has no frames."""
    frames = traceback.extract_tb(error.__traceback__)
    if not isinstance(error, TOLD) or not frames:
        return False
    folder = Path(frames[-1].filename).parent
    return tools in folder.parents or PACKAGE in (folder, *folder.parents)
