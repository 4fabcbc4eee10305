"""Which broken connections are taken for the same death."""

from __future__ import annotations

from gateway.fallback.severed import Severed


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


def test_what_was_sent_before_the_first_ended_and_ends_soon_after_it_is_one_incident() -> None:
    clock = Clock()
    severed = Severed(clock)
    first = severed.incident(9.0)
    clock.now = 10.5
    assert severed.incident(9.9) == first
    assert severed.incident(10.0) == first
    # One that was sent to the next process was lost by another death.
    second = severed.incident(10.2)
    assert second != first
    assert severed.incident(9.0) == second
    # So was one that lived on.
    clock.now = 11.6
    assert severed.incident(9.0) not in (first, second)
