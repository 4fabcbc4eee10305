from __future__ import annotations

from engine.core.deadlines import Deadlines


def test_those_that_passed_come_soonest_first() -> None:
    deadlines = Deadlines()
    for deadline, number in ((3.0, 1), (1.0, 2), (2.0, 3), (9.0, 4)):
        deadlines.add(deadline, number, {1, 2, 3, 4})
    assert [deadlines.pop(3.0) for _ in range(4)] == [2, 3, 1, None]
    assert len(deadlines) == 1


def test_only_those_of_open_requests_are_kept() -> None:
    deadlines = Deadlines()
    for number in range(1000):
        deadlines.add(-float(number), number, {3, 5, 77, number})
        assert len(deadlines) <= 2 * 4 + 64 + 1
    found = {deadlines.pop(0.0) for _ in range(len(deadlines))}
    assert {3, 5, 77, 999} <= found
    assert deadlines.pop(0.0) is None
