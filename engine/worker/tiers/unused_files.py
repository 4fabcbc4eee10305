"""Files of KV blocks that no engine uses any more, of models or settings that are gone: they are kept for a while, as
a model may come back, and then deleted."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG

from engine.worker.tiers.block_file import NAME, is_at

log = logging.getLogger("engine.worker")

LONGEST = 30 * 86400.0
"""Seconds for which a file is kept after its last use."""
_MODEL = re.compile(r"[0-9a-f]{32}")
"""Folders of models, named by a hash of their weights."""
_FILE = re.compile(rf"{NAME}(\.\d)?")


def remove_unused(folder: Path, most: int) -> None:
    """Of the files in ``folder`` that no engine has, deletes what was last used ``LONGEST`` ago or earlier, and of the
    others those last used first until they take ``most`` bytes of the disk together. One that an engine has is locked,
    and neither deleted nor counted."""
    kept, now = 0, time.time()
    for used, taken, path in sorted(_unused(folder), reverse=True):
        if now - used < LONGEST and kept + taken <= most:
            kept += taken
        else:
            with contextlib.suppress(OSError), _locked(path):
                path.unlink()
                log.info("deleted %s: %.1f MiB that no engine used", path, taken / 2**20)
            with contextlib.suppress(OSError):  # it has other files
                path.parent.rmdir()


def _unused(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """When it was last used (``time.time()``), bytes that it takes, and the file."""
    for path in folder.glob("*/*"):
        if _MODEL.fullmatch(path.parent.name) and not path.parent.is_symlink():
            with contextlib.suppress(OSError):
                found = path.lstat()
                if not (_FILE.fullmatch(path.name) and S_ISREG(found.st_mode)):
                    continue
                if found.st_uid == os.geteuid():
                    with _locked(path):
                        pass
                    yield found.st_mtime, found.st_blocks * 512, path


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Raises ``BlockingIOError`` where an engine has it, ``FileNotFoundError`` where it was deleted meanwhile."""
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not is_at(path, file):
            raise FileNotFoundError(path)
        yield
    finally:
        os.close(file)
