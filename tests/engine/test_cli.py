"""What a user reads when something goes wrong."""

import argparse
import errno
import os

import pytest

from mmsoft.engine.cli import add_img_size, numbers_joined, run_tool


def full() -> None:
    os.write(os.open('/dev/full', os.O_WRONLY), b'x')


def test_errors_without_frames_and_full_disks_are_told() -> None:
    def wrapped() -> None:
        try:
            full()
        except OSError as error:
            raise RuntimeError('a wrapper') from error

    def bare() -> None:  # the last of the chain was never raised
        raise RuntimeError('a library') from ValueError('its reason')

    for main in (full, wrapped):
        with pytest.raises(SystemExit, match=r'error: \[Errno 28\] No space left on device'):
            run_tool(main)
    with pytest.raises(RuntimeError, match='a library'):
        run_tool(bare)

    def other() -> None:
        raise OSError(errno.EACCES, 'not ours')

    with pytest.raises(OSError, match='not ours'):
        run_tool(other)


def test_names_do_not_steer_the_terminal(capsys: pytest.CaptureFixture) -> None:
    from mmsoft.engine.config import load_config

    with pytest.raises(SystemExit) as caught:
        run_tool(lambda: load_config('no\x1b[2Jsuch\udce9.py'))
    assert '\x1b' not in str(caught.value)


def test_a_size_of_one_or_two_numbers_leaves_what_follows(capsys: pytest.CaptureFixture) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument('config')
    parser.add_argument('--cfg-options', nargs='+')
    add_img_size(parser)

    def read(text: str) -> argparse.Namespace:
        return parser.parse_args(numbers_joined(text.split()))

    assert read('7').img_size is None
    for text in ('--img-size 96 a.py', 'a.py --img-size 96', '--img-size=96 a.py', '--cfg-options a=1 --img 96 a.py'):
        assert (read(text).config, read(text).img_size) == ('a.py', (96,))
    for text in ('--img-size 96 128 a.py', 'a.py --img-size 96 128', '--img-size 96x128 a.py'):
        assert (read(text).config, read(text).img_size) == ('a.py', (96, 128))
    assert read('a.py --img-size 1 2 3').img_size == (1, 2, 3)  # set_img_size refuses it
    with pytest.raises(SystemExit):
        read('a.py --img-size wide')
    assert "--img-size: a height and a width, or one number for both; got 'wide'" in capsys.readouterr().err
