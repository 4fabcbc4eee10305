"""Keepers of several workers on common states: they agree, lose nothing, and tell what is decided."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from gateway.databases.opening import open_tables
from gateway.experiments import common_states
from gateway.experiments.assignment import CONTROL, NEW
from gateway.experiments.common_states import (
    ROLLOUTS,
    CommonStates,
    MemoryStates,
    RedisStates,
    TableStates,
)
from gateway.experiments.evidence import Observed
from gateway.experiments.keeper import LEASE, Keeper, NoSuchRollout, NotNow, Told
from gateway.experiments.rollout_state import RolloutState
from gateway.policy.schema import LedgerSettings, Rollout
from gateway.stores.store import StoreDown
from tests.postgres_server import PostgresServer
from tests.redis_server import RedisServer
from tests.redis_topologies import RedisCluster

pytestmark = pytest.mark.anyio
GOOD, BAD = Observed(False, 0.2, 1000), Observed(True, 0.2, 1000)
ROLLOUT = Rollout.model_validate({"to": {"backend": "b", "model": "x"}, "hold": "10m"})


class World:
    """A clock, and keepers that share one."""

    def __init__(self, states: CommonStates) -> None:
        self.states = states
        self.now = 1.7e9
        self.told: list[Told] = []

    def keeper(self) -> Keeper:
        async def tell(told: Told) -> None:
            self.told.append(told)

        return Keeper(self.states, {"e": ("m", ROLLOUT)}, tell, clock=lambda: self.now)

    @property
    def whats(self) -> list[str]:
        return [one.decision.what for one in self.told]


def state_of(keeper: Keeper) -> RolloutState:
    state = keeper.state("e")
    assert state is not None
    return state


def seen(keeper: Keeper, new: int, control: int, one: Observed = GOOD) -> None:
    for arm, count in ((NEW, new), (CONTROL, control)):
        for _ in range(count):
            keeper.record("e", arm, one if arm == NEW else GOOD)


@pytest.fixture
def world() -> World:
    return World(MemoryStates())


async def test_steps_follow_one_another_while_nothing_is_wrong(world: World) -> None:
    keeper = world.keeper()
    shares = []
    for _ in range(5):
        await keeper.look()
        shares.append(state_of(keeper).share)
        seen(keeper, 30, 30)
        world.now += 601
    assert shares == [1.0, 5.0, 25.0, 100.0, 100.0]
    assert world.whats == ["began", "step", "step", "completed"]
    assert keeper.is_new("e", b"anybody")


async def test_a_step_waits_for_its_time_and_for_requests(world: World) -> None:
    keeper = world.keeper()
    await keeper.look()
    seen(keeper, 30, 30)
    world.now += 599
    await keeper.look()
    assert state_of(keeper).share == 1.0
    assert state_of(keeper).waits_for(ROLLOUT, world.now) == "1 s"
    world.now += 2
    await keeper.look()
    assert state_of(keeper).share == 5.0
    world.now += 10_000
    await keeper.look()
    assert state_of(keeper).share == 5.0
    assert "20 more requests" in state_of(keeper).waits_for(ROLLOUT, world.now)


async def test_no_two_workers_count_the_same_and_none_of_it_is_lost(world: World) -> None:
    keepers = [world.keeper() for _ in range(4)]
    await asyncio.gather(*(keeper.look() for keeper in keepers))
    for _ in range(5):
        for keeper in keepers:
            seen(keeper, 3, 7)
        await asyncio.gather(*(keeper.look() for keeper in keepers))
    await keepers[0].look()
    evidence = state_of(keepers[0]).evidence
    counted = {arm: evidence.total[arm].requests + evidence.block[arm].requests for arm in (NEW, CONTROL)}
    assert counted == {NEW: 4 * 5 * 3, CONTROL: 4 * 5 * 7}
    assert world.whats == ["began"]


async def test_only_who_has_the_lease_decides_and_another_does_when_it_is_gone(world: World) -> None:
    first, second = world.keeper(), world.keeper()
    await first.look()
    await second.look()
    assert state_of(second).owner == first.owner
    # The first is killed: it looks at nothing any more.
    seen(second, 100, 100, BAD)
    await second.look()
    assert state_of(second).status == "running"
    world.now += LEASE + 1
    await second.look()
    assert (state_of(second).status, state_of(second).owner) == ("returned", second.owner)
    assert not second.is_new("e", b"anybody")
    assert Counter(world.whats) == {"began": 1, "returned": 1}


async def test_what_was_decided_and_not_told_is_told_by_the_next(world: World) -> None:
    """The owner is killed between the decision and its telling."""

    async def dies(told: Told) -> None:
        raise asyncio.CancelledError

    dying = Keeper(world.states, {"e": ("m", ROLLOUT)}, dies, clock=lambda: world.now)
    with pytest.raises(asyncio.CancelledError):
        await dying.look()
    world.now += LEASE + 1
    second = world.keeper()
    await second.look()
    await second.look()
    assert world.whats == ["began"]


async def test_a_person_stops_it_and_begins_it_anew(world: World) -> None:
    keeper = world.keeper()
    await keeper.look()
    seen(keeper, 30, 30)
    await keeper.look()
    await keeper.stop("m", {"key": "alice"})
    assert not keeper.is_new("e", b"anybody")
    seen(keeper, 30, 30, BAD)
    world.now += 10_000
    await keeper.look()
    assert (state_of(keeper).status, state_of(keeper).share) == ("stopped", 0.0)
    await keeper.begin("m", {"key": "alice"})
    await keeper.look()
    state = state_of(keeper)
    assert (state.run, state.status, state.share) == (2, "running", 1.0)
    assert state.evidence.total[NEW].requests == 0
    assert world.whats == ["began", "stopped", "began"]
    assert [one.decision.by for one in world.told] == [None, {"key": "alice"}, {"key": "alice"}]
    with pytest.raises(NoSuchRollout):
        await keeper.stop("other", None)


async def test_a_person_at_a_worker_that_has_not_looked_yet_is_obeyed_by_what_is_so(world: World) -> None:
    first, second = world.keeper(), world.keeper()
    await first.look()
    await first.stop("m", None)
    await second.look()
    await first.begin("m", None)
    assert state_of(second).status == "stopped"
    with pytest.raises(NotNow, match="running"):
        await second.begin("m", None)
    assert (await second.stop("m", None)).share == 0.0
    with pytest.raises(NotNow, match="stopped"):
        await first.stop("m", None)
    await first.look()
    assert state_of(first).run == 2


async def test_two_looks_at_once_tell_a_decision_once(world: World) -> None:
    """As where a policy is edited while the worker looks."""
    told: list[str] = []

    async def tell(one: Told) -> None:
        await asyncio.sleep(0)
        told.append(one.decision.what)

    keeper = Keeper(world.states, {"e": ("m", ROLLOUT)}, tell, clock=lambda: world.now)
    await asyncio.gather(*(keeper.look() for _ in range(3)))
    assert told == ["began"]


class Broken(MemoryStates):
    down = False

    async def get(self, name: str) -> bytes | None:
        if self.down:
            raise StoreDown("away")
        return await super().get(name)


async def test_while_the_store_is_away_the_share_stays_and_nothing_seen_is_lost() -> None:
    states = Broken()
    world = World(states)
    keeper = world.keeper()
    await keeper.look()
    states.down = True
    for _ in range(3):
        seen(keeper, 10, 10)
        world.now += 1000
        await keeper.look()
    assert state_of(keeper).share == 1.0
    states.down = False
    await keeper.look()
    assert state_of(keeper).share == 5.0
    assert state_of(keeper).evidence.total[NEW].requests == 30


async def test_a_worker_that_knows_no_state_keeps_to_what_is_there(world: World) -> None:
    assert not world.keeper().is_new("e", b"anybody")


async def states_swap(states: CommonStates) -> None:
    try:
        assert await states.get("a") is None
        assert await states.swap("a", None, b'{"x":1}')
        assert not await states.swap("a", None, b'{"x":2}')
        assert not await states.swap("a", b'{"x":0}', b'{"x":2}')
        assert await states.swap("a", b'{"x":1}', b'{"x":2}')
        assert await states.get("a") == b'{"x":2}'
        assert await states.get("b") is None
        racing = [states.swap("a", b'{"x":2}', b'{"y":%d}' % number) for number in range(8)]
        assert sum(await asyncio.gather(*racing)) == 1
    finally:
        await states.aclose()


async def test_states_in_memory() -> None:
    await states_swap(MemoryStates())


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_states_in_a_table(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    config = LedgerSettings()
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        config = LedgerSettings(store=server.url(server.new_database()))
    await states_swap(TableStates(open_tables(ROLLOUTS, config, tmp_path)))


async def test_states_in_redis(redis_server: RedisServer) -> None:
    await states_swap(RedisStates(redis_server.url, prefix="test_states_in_redis:"))


async def test_states_in_a_cluster(redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their keys lie in slots that the server has which is asked, wherever that is."""
    monkeypatch.setattr(common_states, "TIMEOUT", 60.0)
    await states_swap(RedisStates(redis_cluster.url))
    states = RedisStates(redis_cluster.url)
    for number in range(24):
        assert await states.swap(f"cluster-{number}", None, b"{}")
    await states.aclose()


async def test_a_redis_that_is_away_is_told() -> None:
    states = RedisStates("redis://127.0.0.1:1")
    with pytest.raises(StoreDown):
        await states.get("a")
    await states.aclose()


async def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "rollouts.sqlite").write_text("no database, and long enough not to be taken for one " * 20)
    states = TableStates(open_tables(ROLLOUTS, LedgerSettings(), tmp_path))
    with pytest.raises(StoreDown):
        await states.get("a")


async def test_an_unreadable_state_is_told_once_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    states = MemoryStates()
    world = World(states)
    keeper = world.keeper()
    await keeper.look()
    sound = await states.get("e")
    assert sound is not None
    for broken in (b"{", b"[1]", b"{}", b'"x"', b'{"run": 1}'):
        await states.swap("e", await states.get("e"), broken)
        for _ in range(3):
            await keeper.look()
        assert await states.get("e") == broken, "whoever wrote it may read it"
        assert keeper.unreadable == 1
        with pytest.raises(StoreDown, match="delete it"):
            await keeper.stop("m", None)
    (told,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "'e' in memory" in told.getMessage()
    assert told.exc_info is None
    await states.swap("e", await states.get("e"), sound)
    await keeper.look()
    assert keeper.unreadable == 0
    assert "can be read again" in caplog.text
    assert world.whats == ["began"]


async def test_another_store_goes_on_from_what_is_known() -> None:
    first, second = MemoryStates(), MemoryStates()
    world = World(first)
    keeper, other = world.keeper(), world.keeper()
    await keeper.look()
    await keeper.stop("m", None)
    await keeper.look()
    await other.look()
    keeper.states = other.states = second
    await keeper.look()
    await other.look()
    assert {state_of(one).status for one in (keeper, other)} == {"stopped"}
    await keeper.begin("m", None)
    await keeper.look()
    keeper.states = first  # which has an earlier decision
    await keeper.look()
    assert (state_of(keeper).run, state_of(keeper).status) == (2, "running")
    assert world.whats == ["began", "stopped", "began"]
