"""Where the models' sockets are: a folder that goes with the process that made it.

Nothing tidies up after a process that was killed, so the next one removes what such ones have left. A lock on the
folder, which the kernel drops with the process that holds it, tells whose owner lives: numbers of processes are used
again, and differ between containers that share a folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "tollgate-fleet-"


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """A new one among the machine's temporary files, readable by this user alone."""
    remove_stale(Path(tempfile.gettempdir()))
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        if (held := _lock(folder, fcntl.LOCK_EX)) is not None:
            break
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def remove_stale(among: Path) -> None:
    """Removes this user's folders whose processes have ended."""
    for folder in among.glob(f"{PREFIX}*"):
        if (held := _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(held)


def _lock(folder: Path, how: int) -> int | None:
    """The descriptor that holds it, to be closed; ``None``: it is another's, or is gone, perhaps while this waited."""
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        found = os.fstat(held)
        if found.st_uid == os.geteuid():
            fcntl.flock(held, how)
            if os.path.samestat(found, folder.stat()):
                return held
    except OSError:  # BlockingIOError, where its owner lives; FileNotFoundError
        pass
    os.close(held)
    return None
