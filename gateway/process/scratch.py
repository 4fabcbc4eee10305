"""The folder of what a running gateway's processes share: sockets, and files that are worthless after it.

Nothing tidies up after a gateway that was killed, so the next one removes what such ones have left. A lock on a file in
the folder, which the kernel drops with the process that holds it, tells whose owner lives: numbers of processes are
used again, and differ between containers that share a folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "tollgate-serve-"
_OWNER = "owner"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new one among the machine's temporary files, readable by this user alone."""
    remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        with (folder / "new").open("wb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX)
            # Whoever finds it under its name finds it locked.
            Path(owner.name).rename(folder / _OWNER)
            yield folder


def remove_abandoned(among: Path) -> None:
    """Removes this user's folders whose owners have ended."""
    for folder in among.glob(f"{PREFIX}*"):
        with contextlib.suppress(
            OSError
        ):  # it is another's, or is gone; BlockingIOError, where its owner lives
            if folder.lstat().st_uid != os.geteuid():
                continue
            owner = os.open(folder / _OWNER, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(owner)
