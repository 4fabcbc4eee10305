"""Disk space for the metric files that a worker shares with the others.

prometheus_client grows its files sparsely, and writes to them through memory maps: on a full disk that is a SIGBUS,
which ends the process. So the space is allocated in advance, and where there is none, new metrics are dropped.
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
"""The variable from which prometheus_client, when imported, takes the folder."""
FILES = ("counter", "histogram", "gauge_livesum", "gauge_livemin", "gauge_livemax")
"""One for each type of metric (and mode of gauges) in ``gateway.observe.metrics``."""
FIRST = 2**17
"""Initial bytes of a file. prometheus_client doubles it whenever it is full."""
SLACK = 2**16
"""Bytes, more than a new set of labels adds to a file: twenty lines of some hundred bytes."""
AGAIN = 10.0
"""Seconds after which a failed allocation is tried again."""


class MetricFiles:
    """One process's files, as prometheus_client will open them."""

    def __init__(self, folder: Path, pid: int) -> None:
        self._files = [folder / f"{kind}_{pid}.db" for kind in FILES]
        self._sizes = dict.fromkeys(self._files, 0)
        self._refused_until = 0.0

    @classmethod
    def of_this_process(cls) -> MetricFiles | None:
        """Those of this process; None where it does not share its metrics."""
        folder = os.environ.get(FOLDER)
        return cls(Path(folder), os.getpid()) if folder else None

    def allocate(self) -> bool:
        """Allocate space for the present metrics and one more set of labels; False where the disk is full."""
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
                log.error("no disk space for more metrics (%s): new ones are dropped", error)
            self._refused_until = time.monotonic() + AGAIN
            return False
        self._refused_until = 0.0
        return True

    def remove(self) -> None:
        """Remove the files."""
        for file in self._files:
            file.unlink(missing_ok=True)


def share_or_not() -> None:
    """Do not share this process's metrics where there is no disk space to do so.

    Must be called before prometheus_client is imported.
    """
    files = MetricFiles.of_this_process()
    if files is not None and not files.allocate():
        files.remove()
        del os.environ[FOLDER]
        log.error("this worker's metrics are not shared with the other workers")


def _used(file: Path, size: int) -> int:
    """Bytes that prometheus_client has written; its files begin with that number."""
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
        else:  # by hand, after the present contents
            start = os.fstat(descriptor).st_size
            if os.pwrite(descriptor, bytes(size - start), start) < size - start:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)
