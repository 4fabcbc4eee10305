"""A file of JSON lines that several processes append to, bounded in size."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from gateway.observe.batch_writer import BatchWriter
from gateway.private import private_file, private_folder
from gateway.types import Json

log = logging.getLogger(__name__)


class JsonLines:
    """Lines are queued by ``add`` and written in batches. When the disk fails, lines are lost, not requests.

    A file that would grow beyond half of ``max_bytes`` becomes ``<name>.1``, in place of the one before; so the two
    together never take more. Only their owner may read them.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._half = max_bytes // 2
        self._writer: BatchWriter[Mapping[str, Json]] = BatchWriter(path.name, self._write)

    @property
    def lost(self) -> int:
        """Lines that were not written."""
        return self._writer.lost

    def add(self, line: Mapping[str, Json]) -> bool:
        """False where it is lost, as too many wait."""
        return self._writer.add(line)

    def flush(self) -> None:
        """Block until all is written."""
        self._writer.flush()

    async def aclose(self) -> None:
        await asyncio.to_thread(self._writer.close)

    def _write(self, batch: list[Mapping[str, Json]]) -> None:
        # In ASCII: texts may hold line separators, control sequences and lone surrogates.
        lines = [json.dumps(line).encode() + b"\n" for line in batch]
        try:
            private_folder(self.path.parent)
            for line in lines:
                self._append(line)
        except OSError as error:
            self._writer.lost += len(batch)
            self._writer.warn(log, "'%s' cannot be written: %s", self.path, error.strerror or error)

    def _append(self, line: bytes) -> None:
        while True:
            private_file(self.path)
            try:
                file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            except FileNotFoundError:
                continue  # another worker has just put it aside
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                status = os.fstat(file)
                if not status.st_nlink or not self._is(status):
                    continue  # put aside while we waited for the lock
                if status.st_size and status.st_size + len(line) > self._half:
                    self.path.replace(self.path.with_name(self.path.name + ".1"))
                    continue
                os.write(file, line)
                return
            finally:
                os.close(file)

    def _is(self, status: os.stat_result) -> bool:
        try:
            return os.path.samestat(status, self.path.stat())
        except FileNotFoundError:
            return False
