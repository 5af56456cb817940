"""Logs that cannot be written do not end a run, and do not fail without a word."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from mmengine.visualization import LocalVisBackend, Visualizer

from mmsoft.files import json_text, shown


class LogKeeper:
    """Says once, on stderr, that logs cannot be written or that their folder is gone, and the run goes on.

    What must not be lost, the checkpoints, still ends it. Names of classes and files do not steer the terminal.
    """

    def __init__(self, handlers: Sequence[logging.Handler]) -> None:
        self.handlers, self.told, self.visualizer = handlers, set(), None
        self.classes, self.odd_names = (), []
        for handler in handlers:
            handler.addFilter(self._escape)
            handler.handleError = partial(self._failed, handler)

    def watch(self, visualizer: Visualizer) -> None:
        """What it writes, and which classes it has."""
        self.visualizer = visualizer
        for backend in visualizer._vis_backends.values():
            if isinstance(backend, LocalVisBackend):
                backend._dump = partial(self._dump, backend._dump)

    def _escape(self, record: logging.LogRecord) -> bool:
        """A filter that lets every record pass, with controls as escapes, in names of classes ends of lines as well."""
        classes = (getattr(self.visualizer, 'dataset_meta', None) or {}).get('classes') or ()
        if classes is not self.classes:
            odd = (str(name) for name in classes if shown(str(name)) != str(name))
            self.classes, self.odd_names = classes, sorted(odd, key=len, reverse=True)
        message = record.getMessage()
        for name in self.odd_names:
            message = message.replace(name, shown(name))
        record.msg, record.args = shown(message, keep='\n\t'), None
        return True

    def _failed(self, handler: logging.Handler, record: logging.LogRecord) -> None:
        """In place of a traceback a line."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._tell_of(error, getattr(handler, 'baseFilename', 'the output'))
        else:
            type(handler).handleError(handler, record)

    def _dump(self, dump: Callable[[dict, str, str], None], row: dict, path: str, form: str) -> None:
        """Add a row to the scalars, whole or not at all."""
        file = Path(path)
        try:
            if not file.parent.is_dir():
                self._begin_anew(file.parent)
            size = file.stat().st_size if file.exists() else 0
            try:
                dump({json_text(str(name)): value for name, value in row.items()}, path, form)
            except OSError:
                with suppress(OSError):
                    os.truncate(path, size)
                raise
        except OSError as error:
            self._tell_of(error, path)

    def _begin_anew(self, folder: Path) -> None:
        self._tell(
            'gone',
            f'{str(folder)!r} is gone: has somebody deleted the work directory of this run? The run goes on, in a new '
            'one; logs and checkpoints from before are lost',
        )
        folder.mkdir(parents=True, exist_ok=True)
        for handler in self.handlers:
            if isinstance(handler, logging.FileHandler) and not Path(handler.baseFilename).exists():
                handler.setStream(handler._open())

    def _tell_of(self, error: OSError, path: str) -> None:
        reason = error.strerror or error
        self._tell(
            error.errno,
            f'the log {path!r} cannot be written: {reason}. The run goes on without; its next checkpoint needs room',
        )

    def _tell(self, key: object, message: str) -> None:
        if key not in self.told:
            self.told.add(key)
            with suppress(OSError):
                print(f'warning: {message}', file=sys.stderr, flush=True)
