"""Data of one's own: a folder looked at, recognised and made ready, without a change in it."""

from .found import PARTS, Found, OwnDataError, Picture
from .looking import look
from .writing import write

__all__ = ['PARTS', 'Found', 'OwnDataError', 'Picture', 'look', 'write']
