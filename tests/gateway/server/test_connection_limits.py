"""Who makes room for whom."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys

import pytest

from gateway.server import connection_limits
from gateway.server.connection_limits import ConnectionLimiter, ConnectionLimits

pytestmark = pytest.mark.anyio


class Someone:
    def __init__(self, limiter: ConnectionLimiter, address: str = "10.0.0.1", *, idle: bool = False) -> None:
        self.address = address
        self.idle = idle
        self.has_left = False
        self.entered = limiter.enter(self)

    def abort(self) -> None:
        self.has_left = True


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "GRACE", 0)


async def settled() -> None:
    await asyncio.sleep(0.02)


async def test_unauthenticated_make_room_for_unauthenticated_the_oldest_first() -> None:
    full = ConnectionLimiter(ConnectionLimits(10, 4, 4))
    some = [Someone(full, f"10.0.0.{i}") for i in range(7)]
    assert all(one.entered for one in some)
    assert not any(one.has_left for one in some), "what they sent may not have been read yet"
    await settled()
    assert [one.has_left for one in some] == [True] * 3 + [False] * 4
    assert len(full) == 4


async def test_one_address_takes_no_more_than_its_share() -> None:
    full = ConnectionLimiter(ConnectionLimits(100, 50, 3))
    other = Someone(full, "10.0.0.9")
    some = [Someone(full) for _ in range(5)]
    await settled()
    assert [one.has_left for one in some] == [True, True, False, False, False]
    assert not other.has_left


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "", True),
    ],
)
async def test_what_counts_as_one_address(one: str, other: str, same: bool) -> None:
    full = ConnectionLimiter(ConnectionLimits(100, 50, 1))
    first = Someone(full, one)
    Someone(full, other)
    await settled()
    assert first.has_left == same


async def test_who_has_proven_a_key_is_no_stranger() -> None:
    full = ConnectionLimiter(ConnectionLimits(10, 2, 2))
    known = [Someone(full) for _ in range(2)]
    for one in known:
        full.authenticated(one)
    unauthenticated = [Someone(full) for _ in range(2)]
    await settled()
    assert not any(one.has_left for one in (*known, *unauthenticated))
    assert len(full) == 4


async def test_in_a_full_room_who_rests_goes_first_then_unauthenticated_then_newcomers() -> None:
    full = ConnectionLimiter(ConnectionLimits(3, 3, 3))
    busy, resting = Someone(full), Someone(full, idle=True)
    full.authenticated(busy)
    full.authenticated(resting)
    stranger = Someone(full)
    assert Someone(full).entered
    assert (busy.has_left, resting.has_left, stranger.has_left) == (False, True, False)
    last = Someone(full)
    assert last.entered
    assert stranger.has_left
    some = [one for one in full._unauthenticated if isinstance(one, Someone)]
    for one in some:
        full.authenticated(one)
    assert not Someone(full).entered
    assert not any(one.has_left for one in (busy, *some))


async def test_unauthenticated_beyond_their_part_cost_nobody_who_is_known_a_place() -> None:
    """Before the grace has passed there may be any number of them."""
    full = ConnectionLimiter(ConnectionLimits(10, 4, 4))
    resting = [Someone(full, idle=True) for _ in range(5)]
    for one in resting:
        full.authenticated(one)
    unauthenticated = [Someone(full, f"10.0.1.{i}") for i in range(100)]
    assert all(one.entered for one in unauthenticated)
    assert not any(one.has_left for one in resting)
    assert len(full) == 10


async def test_one_address_beyond_its_part_costs_no_other_a_place() -> None:
    full = ConnectionLimiter(ConnectionLimits(10, 8, 4))
    others = [Someone(full, f"10.0.1.{i}") for i in range(4)]
    limiter = [Someone(full) for _ in range(100)]
    assert all(one.entered for one in limiter)
    assert not any(one.has_left for one in others)
    assert len(full) == 10


async def test_nobody_is_remembered() -> None:
    full = ConnectionLimiter(ConnectionLimits(1000, 10, 10))
    for _ in range(1000):
        one = Someone(full)
        full.authenticated(one)
        full.closed(one)
        full.closed(Someone(full))
    assert len(full) == len(full._by_network) == 0
    assert len(full._order) < 100


@pytest.mark.parametrize(
    ("given", "descriptors", "room"),
    [
        ((0, 0, 0), 1024, ConnectionLimits(480, 240, 120)),
        ((0, 0, 0), 256, ConnectionLimits(96, 48, 24)),
        ((0, 0, 0), 30, ConnectionLimits(8, 4, 2)),
        ((100, 0, 7), 1024, ConnectionLimits(100, 50, 7)),
        ((10_000, 10_000, 10_000), 1024, ConnectionLimits(480, 480, 480)),
        ((1, 0, 0), 1024, ConnectionLimits(1, 1, 1)),
    ],
)
async def test_how_much_room_there_is(
    given: tuple[int, int, int], descriptors: int, room: ConnectionLimits
) -> None:
    assert ConnectionLimits.of(*given, descriptors=descriptors) == room


async def test_as_many_descriptors_as_the_system_lets_us_have() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 300:
        pytest.skip("the system gives too few to tell")
    code = "from gateway.server.connection_limits import descriptors; print(descriptors())"
    shell = f'ulimit -Sn 100 && ulimit -Hn 300 && exec "{sys.executable}" -c "{code}"'
    done = await asyncio.to_thread(
        subprocess.run, ["sh", "-c", shell], capture_output=True, text=True, check=True
    )
    assert done.stdout == "300\n"
