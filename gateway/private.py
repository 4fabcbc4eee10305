"""Files that only their owner may read: they hold secrets, or who asked what."""

from __future__ import annotations

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)


def private_folder(path: Path) -> None:
    """Make the folder, and those above it, where it is not there; one that is there stays as it is."""
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)


def private_file(path: Path) -> None:
    """Make the file, empty, where it is not there, and take from others the right to read one that is.

    Raises ``OSError`` where it cannot be made.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        take_from_others(path)


def take_from_others(path: Path) -> None:
    """The right to read a file, if it is there: it may go at any moment."""
    # Not opened for it: to close one of SQLite's files gives up all locks that this process has on it.
    try:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
    except FileNotFoundError:
        pass
    except PermissionError:
        log.warning("'%s' belongs to somebody else, who lets others read it", path)
