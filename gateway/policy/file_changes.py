"""Changing files of a policy: one change at a time over all processes, and each file whole or not at all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


@contextmanager
def locked(*folders: Path | None) -> Iterator[None]:
    """Keep every other process that locks one of these folders out. Those that are not there are not locked."""
    with ExitStack() as stack:
        for folder in folders:
            if folder is not None and folder.is_dir():  # reading it will say what is wrong
                handle = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def replace_file(file: Path, text: str, mode: int) -> None:
    """Replace a file by rename, so that nobody reads half of it; its owner stays."""
    file = file.resolve()
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    # One that was killed may have left it: in a container each start has the same process id.
    draft.unlink(missing_ok=True)
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            with suppress(PermissionError, FileNotFoundError):
                before = file.stat()
                os.fchown(handle, before.st_uid, before.st_gid)
            os.fchmod(handle, mode)
            os.fsync(handle)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
