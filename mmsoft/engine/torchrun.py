"""torchrun, with the exit code of the first process that failed, which has said why: no traceback is put after it."""

import os
import signal
import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

from mmsoft.engine.preemption import EXIT_CODE


def run() -> None:
    """SIGUSR1, which torchrun does not know, becomes the SIGTERM that it passes on to its trainers."""
    if hasattr(signal, 'SIGUSR1'):
        signal.signal(signal.SIGUSR1, lambda number, frame: os.kill(os.getpid(), signal.SIGTERM))
    try:
        main()
    except SignalException:
        sys.exit(EXIT_CODE)
    except ChildFailedError as error:
        sys.exit(max(1, error.get_first_failure()[1].exitcode))  # a signal's is negative


if __name__ == '__main__':
    run()
