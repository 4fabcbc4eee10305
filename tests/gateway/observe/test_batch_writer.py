from __future__ import annotations

import logging
import sys
import threading

import pytest

from gateway.observe import batch_writer
from gateway.observe.batch_writer import BatchWriter, TryAgain


def test_everything_is_written_in_order_and_in_batches() -> None:
    batches: list[list[int]] = []
    writer = BatchWriter("test", batches.append)
    for number in range(2_500):
        assert writer.add(number)
    writer.close(60)
    assert [number for batch in batches for number in batch] == list(range(2_500))
    assert len(batches) < 10
    assert (writer.lost, writer.waiting()) == (0, [])


def test_a_full_backlog_loses_what_comes_next_and_counts_it() -> None:
    gate, written = threading.Event(), list[int]()

    def write(batch: list[int]) -> None:
        gate.wait(60)
        written.extend(batch)

    writer = BatchWriter("test", write, backlog=3)
    assert [writer.add(number) for number in range(5)] == [True] * 3 + [False] * 2
    assert writer.waiting() == [0, 1, 2]
    gate.set()
    writer.close(60)
    assert (written, writer.lost) == ([0, 1, 2], 2)


def test_a_batch_is_written_again_until_it_succeeds() -> None:
    tries: list[list[int]] = []

    def write(batch: list[int]) -> None:
        tries.append(batch)
        if len(tries) < 4:
            raise TryAgain(0.001)

    writer = BatchWriter("test", write)
    writer.add(1)
    assert writer.flush(60)
    assert tries == [[1]] * 4 and not writer.lost
    writer.close(60)


def test_a_bug_loses_its_batch_and_not_the_writer(caplog: pytest.LogCaptureFixture) -> None:
    written: list[int] = []

    def write(batch: list[int]) -> None:
        written.extend(1 // number for number in batch)

    writer = BatchWriter("test", write)
    writer.add(0)
    assert writer.flush(60)
    writer.add(1)
    writer.close(60)
    assert (written, writer.lost) == ([1], 1)
    assert "test: 1 items are lost to a bug" in caplog.text


def test_closing_gives_up_on_an_output_that_stays_broken() -> None:
    def write(batch: list[int]) -> None:
        raise TryAgain(60)

    writer = BatchWriter("test", write)
    writer.add(1)
    writer.close(0.05)
    assert writer.closed and writer.lost == 1
    assert not writer.add(2), "what comes after the end is lost"
    assert writer.lost == 2


def test_what_happens_with_each_batch_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = BatchWriter("test", lambda batch: None)
    log = logging.getLogger("gateway.some")
    for _ in range(3):
        writer.warn(log, "lost %d", 1)
    monkeypatch.setattr(batch_writer, "WARN_EVERY", 0.0)
    writer.warn(log, "lost %d", 2)
    assert [record.getMessage() for record in caplog.records] == ["lost 1", "lost 2"]


def test_what_is_added_while_a_batch_is_taken_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_writer, "BATCH", 1)
    written = 0

    def count(items: list[int]) -> None:
        nonlocal written
        written += len(items)

    writer: BatchWriter[int] = BatchWriter("test", count, pause=0.0)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    added = 0
    try:
        for number in range(30_000):
            added += writer.add(number)
    finally:
        sys.setswitchinterval(before)
    assert writer.flush(60)
    writer.close()
    assert (written, writer.lost) == (added, 30_000 - added)
