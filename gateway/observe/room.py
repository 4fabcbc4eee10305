"""Room on the disk for the figures that a worker shares with the others.

prometheus_client lets its files grow without filling them, and writes to them through memory: on a full disk that is
SIGBUS, which ends the process. So the room is taken before it is needed, and where there is none, figures are left out.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import time
from pathlib import Path

log = logging.getLogger(__name__)

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable by which prometheus_client, at its import, knows of the folder."""
FILES = ("counter", "histogram", "gauge_livesum", "gauge_livemin")
"""One for each kind of metric (and mode of gauges) that there is in ``gateway.observe.metrics``."""
FIRST = 2**17
"""Bytes of a file at first. prometheus_client doubles it whenever it is full."""
SLACK = 2**16
"""More bytes than all that one new set of labels adds to a file: twenty lines of some hundred bytes."""
AGAIN = 10.0
"""Seconds after which it is tried again where there was none."""


class Room:
    """For one process. The files are those that prometheus_client will open."""

    def __init__(self, folder: Path, pid: int) -> None:
        self._files = [folder / f"{kind}_{pid}.db" for kind in FILES]
        self._sizes = dict.fromkeys(self._files, 0)
        self._refused_until = 0.0

    @classmethod
    def here(cls) -> Room | None:
        """Of this process; None where it shares its figures with nobody."""
        folder = os.environ.get(FOLDER)
        return cls(Path(folder), os.getpid()) if folder else None

    def take(self) -> bool:
        """Whether there is enough of it for what is counted now and one more set of labels. Takes it from the disk."""
        if time.monotonic() < self._refused_until:
            return False
        try:
            for file, size in self._sizes.items():
                wanted = max(size, FIRST)
                while wanted < _used(file, size) + SLACK:
                    wanted *= 2
                if wanted > size:
                    _allocate(file, wanted)
                    self._sizes[file] = wanted
        except OSError as error:
            if not self._refused_until:
                log.error("no room for more metrics (%s): those that are new are left out", error)
            self._refused_until = time.monotonic() + AGAIN
            return False
        self._refused_until = 0.0
        return True

    def give_up(self) -> None:
        """Remove the files."""
        for file in self._files:
            file.unlink(missing_ok=True)


def share_or_not() -> None:
    """Have this process keep its figures to itself where there is no room to share them.

    It must be called before prometheus_client is imported.
    """
    room = Room.here()
    if room is not None and not room.take():
        room.give_up()
        del os.environ[FOLDER]
        log.error("this worker's metrics are told by itself alone")


def _used(file: Path, size: int) -> int:
    """What prometheus_client has written; it begins its files with that number."""
    if not size:
        return 0
    with file.open("rb") as data:
        return int(struct.unpack("i", data.read(4))[0])


def _allocate(file: Path, size: int) -> None:
    """Raises ``OSError``."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:  # by hand, behind what is there
            start = os.fstat(descriptor).st_size
            if os.pwrite(descriptor, bytes(size - start), start) < size - start:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)
