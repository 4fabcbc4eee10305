"""The machine's clock is turned, and limits hold all the same."""

from __future__ import annotations

import pytest

from gateway.quota.clock import SteadyClock
from gateway.quota.limits import Amounts, Limit, Limits
from gateway.quota.memory import MemoryCounters

pytestmark = pytest.mark.anyio


class Machine:
    """Its wall clock can be set, its monotonic one only goes on."""

    def __init__(self, wall: float = 1_900_000_000.0) -> None:
        self.wall = wall
        self.steady = 5.0

    def wait(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def clock(self) -> SteadyClock:
        return SteadyClock(wall=lambda: self.wall, steady=lambda: self.steady)


def test_it_goes_on_whatever_becomes_of_the_wall_clock() -> None:
    machine = Machine()
    clock, began = machine.clock(), machine.wall
    machine.wall -= 3600
    machine.wait(7)
    assert clock() == began + 7
    machine.wall = began + 100  # set right again, and the machine had slept besides
    assert clock() == began + 100
    machine.wall += 3600
    assert clock() == began + 3700


async def test_a_clock_set_back_does_not_lock_a_minute() -> None:
    machine = Machine()
    counters = MemoryCounters(clock=machine.clock())
    on = Limits((Limit("key", "k", "requests", "minute", 2),))
    for one in ("a", "b"):
        assert (await counters.reserve(one, on, Amounts(1, 0, 0))).admitted
    machine.wall -= 3600
    refused = await counters.reserve("c", on, Amounts(1, 0, 0))
    assert refused.wait is not None and refused.wait <= 65
    machine.wait(refused.wait)
    assert (await counters.reserve("d", on, Amounts(1, 0, 0))).admitted


async def test_a_clock_set_back_over_midnight_brings_no_second_budget() -> None:
    machine = Machine(wall=86400.0 * 20_000 + 10)
    counters = MemoryCounters(clock=machine.clock())
    on = Limits((Limit("key", "k", "dollars", "day", 100),))
    assert (await counters.reserve("a", on, Amounts(1, 0, 100))).admitted
    machine.wall -= 60
    machine.wait(1)
    assert not (await counters.reserve("b", on, Amounts(1, 0, 1))).admitted
    machine.wait(86400)
    assert (await counters.reserve("c", on, Amounts(1, 0, 1))).admitted
