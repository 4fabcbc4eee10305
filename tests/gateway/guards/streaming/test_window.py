from __future__ import annotations

from gateway.findings import Finding
from gateway.guards.actions.inspection import Inspection
from gateway.guards.streaming.window import Lane, Mode, Watch
from gateway.observe.metrics import Metrics
from tests.scanners import Words, guards_of


def a_lane(mode: Mode = "windowed", channel: str = "content") -> Lane:
    rules = {"on": ["output"], "window": 16, "interval": 4, "action": "block"}
    guard = guards_of(words=(Words({"cat": "animal"}), rules)).of("acme").output[0]
    return Lane(channel, [Watch(Inspection(guard, "output", Metrics()), mode)])


def test_no_more_is_kept_than_the_next_scan_reads() -> None:
    for mode in ("windowed", "optimistic"):
        lane = a_lane(mode)
        (watch,) = lane.watches
        longest = 0
        for number in range(5000):
            lane.add(f"{number} ", float(number))
            if watch.is_due(lane.end, last=False):
                longest = max(longest, len(lane.text(watch.start)))
                watch.scan_ended(lane.end, last=False)
                lane.forget()
        assert longest <= 16 + 16 + 4 + 5
        assert len(lane._parts) <= 4
        assert len("".join(lane._parts)) <= 48
        assert len(lane._arrivals) <= 24


def test_arrivals_tell_when_a_character_came() -> None:
    lane = a_lane("hold")
    lane.add("abc", 1.0)
    lane.add("def", 2.0)
    assert [lane.arrived(place) for place in (0, 2, 3, 5, 6)] == [1.0, 1.0, 2.0, 2.0, None]


def test_what_begins_in_the_window_waits() -> None:
    lane = a_lane()
    (watch,) = lane.watches
    lane.add("x" * 30, 0.0)
    inside = [Finding("a", 28, 30), Finding("a", 2, 5)]
    assert watch.decided(inside, 0, 30, last=False) == [Finding("a", 2, 5)]
    assert watch.decided(inside, 0, 30, last=True) == inside
    watch.scan_ended(30, last=False)
    assert (watch.cleared, lane.free()) == (14, 14)


def test_an_edit_leaves_as_a_whole() -> None:
    lane = a_lane()
    (watch,) = lane.watches
    lane.add("x" * 40, 0.0)
    lane.replace([Finding("a", 20, 26)])
    watch.cleared = 23
    assert lane.free() == 20
    watch.cleared = 26
    assert lane.free() == 26
    assert lane.leave("x" * 26) == "x" * 20 + "[A]"
    assert lane.seen_at(30) == 27
    assert not lane.edits
