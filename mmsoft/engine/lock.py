"""One training at a time in a work directory: two would overwrite each other's files."""

import os
from pathlib import Path
from weakref import WeakSet

from filelock import FileLock, Timeout

_held = WeakSet()


def lock_work_dir(work_dir: str) -> FileLock:
    """Hold the directory until ``release`` or the end of this process, however it ends; an OSError if another does."""
    lock = FileLock(Path(work_dir, '.lock'), thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise OSError(
            f'another training is at work in {work_dir!r}; end it first, or name another --work-dir'
        ) from None
    except OSError as error:
        raise OSError(f'the work directory {work_dir!r} cannot be locked: {error}; name another --work-dir') from error
    _held.add(lock)
    return lock


def _leave_to_parent() -> None:
    """In a forked process: a data worker may outlive its parent by seconds, and must not hold the lock so long.

    The file is closed, not unlocked, which would unlock it in the parent as well. Newer versions of filelock have done
    so before this comes.
    """
    for lock in _held:
        file, lock._context.lock_file_fd = lock._context.lock_file_fd, None
        if file is not None:
            os.close(file)


if hasattr(os, 'register_at_fork'):  # Windows has no fork
    os.register_at_fork(after_in_child=_leave_to_parent)
