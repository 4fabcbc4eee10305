from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from gateway.observe import batch_writer
from gateway.observe.batch_handler import PIECE, BatchHandler


@pytest.fixture
def logger() -> logging.Logger:
    log = logging.Logger("gateway.some", logging.INFO)
    return log


class Slow(io.StringIO):
    """A stream whose reader takes nothing until it is let go, one write at a time."""

    def __init__(self, held: Callable[[], object]) -> None:
        super().__init__()
        self.writes: list[str] = []
        self._held = held

    def write(self, text: str) -> int:
        self._held()
        self.writes.append(text)
        return super().write(text)


def test_lines_are_written_in_their_order_and_as_they_were_logged(logger: logging.Logger) -> None:
    stream = io.StringIO()
    handler = BatchHandler(stream)
    logger.addHandler(handler)
    facts = {"number": 1}
    logger.info("first %s", facts)
    facts["number"] = 2
    for number in range(100):
        logger.info("line %d", number)
    handler.flush()
    assert stream.getvalue().splitlines() == [
        "first {'number': 1}",
        *(f"line {number}" for number in range(100)),
    ]


def test_a_write_is_no_longer_than_a_pipe_takes_in_one_piece(logger: logging.Logger) -> None:
    stream = Slow(lambda: None)
    handler = BatchHandler(stream)
    logger.addHandler(handler)
    for number in range(200):
        logger.info("line %d %s", number, "é" * 100)
    logger.info("x" * 2 * PIECE)
    handler.flush()
    assert stream.getvalue().count("\n") == 201
    assert all(text.endswith("\n") for text in stream.writes)
    assert max(len(text.encode()) for text in stream.writes[:-1]) <= PIECE
    assert len(stream.writes) < 50


def test_a_reader_that_stops_holds_nobody_up_and_is_told_what_it_missed(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_writer, "BACKLOG", 10)
    read, write = os.pipe()
    stream = Slow(lambda: os.read(read, 1))
    handler = BatchHandler(stream)
    logger.addHandler(handler)
    for number in range(25):
        logger.info("line %d", number)  # would wait for ever if it waited for the stream
    assert handler.lost == 15
    os.close(write)  # from now on everything is read
    logger.error("later")
    handler.flush()
    logger.error("at last")
    handler.flush()
    lines = stream.getvalue().splitlines()
    assert lines[:10] == [f"line {number}" for number in range(10)]
    assert (
        sum(int(line.split()[0]) for line in lines if line.endswith("too slow, or was away")) == handler.lost
    )
    assert lines[-1] == "at last"
    os.close(read)


def test_a_stream_that_fails_is_counted(logger: logging.Logger) -> None:
    stream = io.StringIO()
    stream.close()
    handler = BatchHandler(stream)
    logger.addHandler(handler)
    logger.info("one")
    logger.info("two")
    handler.flush()
    assert handler.lost == 2


def test_nothing_is_lost_at_the_end_of_the_process() -> None:
    program = (
        "import logging, sys\n"
        "from gateway.observe import logs\n"
        "logs.set_up('info', 'text', batches=True)\n"
        "for number in range(3000): logging.getLogger('gateway.some').info('line %d', number)\n"
        "sys.exit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 3
    assert [line.rpartition(" ")[2] for line in done.stderr.splitlines()] == [str(n) for n in range(3000)]
