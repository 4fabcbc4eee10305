"""Log lines formatted and written in batches by a thread.

A line that the event loop writes itself is a system call, wakes the reader of the log, and blocks every request if
there is none.
"""

from __future__ import annotations

import copy
import logging
import select
from collections.abc import Iterable, Iterator
from typing import TextIO

from gateway.observe.batch_writer import SECONDS_TO_CLOSE, BatchWriter

PIECE = getattr(select, "PIPE_BUF", 512)
"""Bytes that a pipe takes in one piece: the lines of several workers share one, and must not be mixed up."""


class BatchHandler(logging.Handler):
    """``logging.shutdown``, which Python calls at its end, writes what still waits, within a few seconds.

    An error is written without a pause. Records that are lost, as nobody reads the stream, are counted in the log.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._writer = BatchWriter("log", self._write)
        self._reported = 0

    @property
    def lost(self) -> int:
        """Records that were not written."""
        return self._writer.lost

    def handle(self, record: logging.LogRecord) -> bool:
        """Queue it. Without the lock that other handlers need: only the thread writes."""
        if self.filters and not self.filter(record):
            return False
        if record.args:
            # Arguments may have changed by the time that they are formatted.
            record, message = copy.copy(record), record.getMessage()
            record.msg, record.args = message, None
        if self._writer.add(record) and record.levelno >= logging.ERROR:
            self._writer.hurry()
        return True

    def flush(self) -> None:
        """Wait until all is written, for a few seconds at most."""
        self._writer.flush(SECONDS_TO_CLOSE)

    def _write(self, batch: list[logging.LogRecord]) -> None:
        lost = self.lost
        if lost > self._reported:
            batch = [*batch, _loss(lost - self._reported)]
            self._reported = lost
        for piece in _pieces(self._lines(batch)):
            try:
                self._stream.write(piece)
                self._stream.flush()
            except (OSError, ValueError):  # the reader has gone, or the stream was closed
                self._writer.lost += piece.count("\n")

    def _lines(self, batch: Iterable[logging.LogRecord]) -> Iterator[str]:
        for record in batch:
            try:
                yield self.format(record) + "\n"
            except Exception:
                self.handleError(record)


def _loss(count: int) -> logging.LogRecord:
    message = f"{count} records of the log were lost: its reader is too slow, or was away"
    return logging.LogRecord(__name__, logging.ERROR, "", 0, message, None, None)


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """As many lines together as a pipe takes in one piece; a longer one by itself."""
    piece: list[str] = []
    size = 0
    for line in lines:
        length = len(line.encode(errors="backslashreplace"))
        if piece and size + length > PIECE:
            yield "".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += length
    if piece:
        yield "".join(piece)
