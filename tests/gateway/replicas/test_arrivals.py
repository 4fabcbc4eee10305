"""Who is told on when: whatever is found and whoever answers, nobody is shut out for good."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backends.transport import OutgoingTransport
from gateway.policy.members import Found
from gateway.replicas import arrivals
from gateway.replicas.arrivals import Arrivals, answers
from tests.examples import examples
from tests.fakes import Action, FakeUpstream, Script, reply
from tests.ports import free_port

SERVERS = [Found(f"http://10.0.0.{number}") for number in range(4)]
NO = 10**9


@settings(max_examples=examples(200))
@given(
    looks=st.lists(st.sets(st.sampled_from(SERVERS)), min_size=1, max_size=6),
    tries=st.fixed_dictionaries({one.url: st.sampled_from([0, 1, 3, NO]) for one in SERVERS}),
    known=st.sets(st.sampled_from(SERVERS)),
    waits=st.booleans(),
)
def test_everybody_who_stays_is_told_on_and_nobody_before_the_answer(
    looks: list[set[Found]], tries: dict[str, int], known: set[Found], waits: bool
) -> None:
    """``tries``: how often each is asked in vain. Time goes on by a second at each question."""
    now, asked = 0.0, dict.fromkeys(tries, 0)
    told: list[list[Found]] = []

    async def answer(url: str) -> bool:
        nonlocal now
        now += 1
        asked[url] += 1
        await asyncio.sleep(0)
        return asked[url] > tries[url]

    async def tell(found: Sequence[Found]) -> None:
        told.append(list(found))

    async def run() -> None:
        ins = Arrivals("b", answer, tell, within=20.0, known=known, waits=waits, clock=lambda: now)
        for found in looks:
            listed = sorted(found)
            before = len(told)
            await ins.update(listed)
            for _ in range(300):
                await asyncio.sleep(0)
            assert told[-1] == listed, "nobody is shut out for good"
            for those in told[before:]:
                assert set(those) <= found and (those or not listed), "an empty list is what was found, alone"
        await ins.aclose()
        assert not any(task for task in asyncio.all_tasks() if task.get_name().startswith("first answer"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrivals, "PAUSE", 0)
        asyncio.run(run())
    assert all(asked[one.url] for one in set.union(*looks) - known)


@pytest.mark.anyio
async def test_those_that_are_known_and_those_that_nobody_asks_are_told_on_at_once() -> None:
    told: list[Sequence[Found]] = []

    async def tell(found: Sequence[Found]) -> None:
        told.append(found)

    async def never(url: str) -> bool:
        raise AssertionError(url)

    ins = Arrivals("b", never, tell, within=0, known=())
    await ins.update(SERVERS[:2])
    ins = Arrivals("b", never, tell, within=60, known=SERVERS[:2])
    await ins.update(SERVERS[:2])
    assert told == [SERVERS[:2]] * 2


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("health", "there"),
    [
        (reply({}), True),
        (reply({}, status=401), True),
        (reply({}, status=404), True),
        (reply({}, status=405), True),
        (reply({}, status=501), True),
        (reply({}, status=500), False),
        (reply({}, status=503), False),
        ((Action.ABORT,), False),
        ((Action.HANG,), False),
    ],
    ids=["200", "401", "404", "405", "501", "500", "503", "drops", "late"],
)
async def test_who_counts_as_there(health: Script, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if health == (Action.HANG,):
        monkeypatch.setattr(arrivals, "TIMEOUT", 0.1)
    async with FakeUpstream() as server, httpx.AsyncClient(transport=OutgoingTransport()) as http:
        server.health = health
        assert await answers(http, server.base_url + "/models") is there
        assert health == (Action.HANG,) or server.probes[0].path == "/v1/models"


@pytest.mark.anyio
async def test_where_nobody_listens_nobody_is() -> None:
    async with httpx.AsyncClient(transport=OutgoingTransport()) as http:
        assert not await answers(http, f"http://127.0.0.1:{free_port()}/health")
        assert not await answers(http, "http://[/health")
