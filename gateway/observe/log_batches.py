"""Log lines written in batches by a thread: whoever logs waits neither for the formatting nor for the stream.

A line that the event loop writes itself is a system call, wakes whoever reads the log, and holds up every request if
nobody does.
"""

from __future__ import annotations

import copy
import logging
import select
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TextIO

PAUSE = 0.05
"""Seconds in which lines come together: what is killed loses so much of its log at most. An error does not wait."""
BACKLOG = 10_000
"""Records that wait for the stream; what is more is lost, counted, and told in the log itself."""
SECONDS_TO_FLUSH = 3.0
PIECE = getattr(select, "PIPE_BUF", 512)
"""Bytes that a pipe takes in one piece: the lines of several workers share one, and are not to be mixed up."""


class BatchHandler(logging.Handler):
    """``logging.shutdown``, which Python calls at its end, writes what still waits, within a few seconds."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.lost = 0
        """Records that were not written."""
        self._stream = stream
        self._records: deque[logging.LogRecord] = deque()
        self._more = threading.Event()
        self._hasten = threading.Event()
        self._drained = threading.Condition()
        self._writer: threading.Thread | None = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Queue it. Without the lock that other handlers need: only the thread writes."""
        if not self.filter(record):
            return False
        if len(self._records) >= BACKLOG:
            self.lost += 1
            return True
        if record.args:
            # They may be others by the time that they are written.
            record, message = copy.copy(record), record.getMessage()
            record.msg, record.args = message, None
        self._records.append(record)
        if not self._more.is_set():
            self._more.set()
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name="log", daemon=True)
                self._writer.start()
        if record.levelno >= logging.ERROR:
            self._hasten.set()
        return True

    def flush(self) -> None:
        """Wait until nothing waits to be written, but for a stream that nobody reads."""
        if threading.current_thread() is self._writer:
            return
        self._hasten.set()
        with self._drained:
            self._drained.wait_for(lambda: not self._records, SECONDS_TO_FLUSH)

    def _write(self) -> None:
        told = 0
        while True:
            self._more.wait()
            self._more.clear()
            self._hasten.wait(PAUSE)
            self._hasten.clear()
            while self._records:
                batch, lost = list(self._records), self.lost
                loss = [_loss(lost - told)] if lost > told else []
                told = lost
                for piece in _pieces(self._lines([*batch, *loss])):
                    self._put(piece)
                # Only now, so that who waits for the end waits for the stream.
                for _ in batch:
                    self._records.popleft()
            with self._drained:
                self._drained.notify_all()

    def _lines(self, batch: Iterable[logging.LogRecord]) -> Iterator[str]:
        for record in batch:
            try:
                yield self.format(record) + "\n"
            except Exception:
                self.handleError(record)

    def _put(self, piece: str) -> None:
        try:
            self._stream.write(piece)
            self._stream.flush()
        except (OSError, ValueError):  # the reader has gone, or the stream was closed
            self.lost += piece.count("\n")


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
