"""Who has a state folder: gateways, which may be several, or a restore, which must be alone."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = ".lock"
"""The file's name in the state folder."""


class StateInUse(Exception):
    """Somebody has it otherwise."""


@contextmanager
def state_lock(state: Path, *, alone: bool) -> Iterator[None]:
    """Have the folder while the block runs. Raises ``StateInUse``.

    Where no lock can be had, as in a folder that nobody may write, nothing is locked: a restore fails there anyway.
    """
    file = state / LOCK
    try:
        handle = _locked(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    except BlockingIOError:
        raise StateInUse from None
    except OSError:  # some network file systems have no locks
        yield
        return
    try:
        yield
    finally:
        if alone:
            file.unlink(missing_ok=True)
        os.close(handle)


def _locked(file: Path, kind: int) -> int:
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with suppress(OSError):  # another's: it stays as it is
                os.fchmod(handle, 0o600)
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), file.stat()):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # it was removed before we had it
