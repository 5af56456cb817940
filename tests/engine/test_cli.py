"""What a user reads when something goes wrong."""

import errno
import os

import pytest

from mmsoft.engine.cli import run_tool


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
