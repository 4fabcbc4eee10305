from __future__ import annotations

from gateway.findings import Finding
from gateway.guards.scans.inspection import Inspection
from gateway.guards.streaming.scan_cursor import Mode, ScanCursor
from gateway.guards.streaming.text_stream import TextStream
from gateway.observe.metrics import Metrics
from tests.scanners import KeywordScanner, guards_of


def a_stream(mode: Mode = "windowed", channel: str = "content") -> TextStream:
    rules = {"on": ["output"], "window": 16, "interval": 4, "action": "block"}
    guard = guards_of(words=(KeywordScanner({"cat": "animal"}), rules)).of("acme").output[0]
    return TextStream(channel, [ScanCursor(Inspection(guard, "output", Metrics()), mode)])


def test_no_more_is_kept_than_the_next_scan_reads() -> None:
    for mode in ("windowed", "optimistic"):
        stream = a_stream(mode)
        (cursor,) = stream.cursors
        longest = 0
        for number in range(5000):
            stream.add((f"{number} ",), float(number))
            if cursor.is_due(stream.end, last=False):
                longest = max(longest, len(stream.text(cursor.start)))
                cursor.advance(stream.end, last=False)
                stream.forget()
        assert longest <= 16 + 16 + 4 + 5
        assert len(stream._parts) <= 4
        assert len("".join(stream._parts)) <= 48
        assert len(stream._arrivals) <= 24


def test_arrivals_tell_when_a_character_came() -> None:
    stream = a_stream("hold")
    stream.add(("abc",), 1.0)
    stream.add(("def",), 2.0)
    assert [stream.arrived(place) for place in (0, 2, 3, 5, 6)] == [1.0, 1.0, 2.0, 2.0, None]


def test_what_begins_in_the_window_waits() -> None:
    stream = a_stream()
    (cursor,) = stream.cursors
    stream.add(("x" * 30,), 0.0)
    inside = [Finding("a", 28, 30), Finding("a", 2, 5)]
    assert cursor._certain(inside, 0, 30, last=False) == [Finding("a", 2, 5)]
    assert cursor._certain(inside, 0, 30, last=True) == inside
    cursor.advance(30, last=False)
    stream.settle()
    assert (cursor.cleared, stream.free) == (14, 14)


def test_an_edit_leaves_as_a_whole() -> None:
    stream = a_stream()
    (cursor,) = stream.cursors
    stream.add(("x" * 40,), 0.0)
    stream.replace([Finding("a", 20, 26)])
    cursor.cleared = 23
    stream.settle()
    assert stream.free == 20
    cursor.cleared = 26
    stream.settle()
    assert stream.free == 26
    assert stream.release("x" * 26) == "x" * 20 + "[A]"
    assert stream.seen_at(30) == 27
    assert not stream.edits
