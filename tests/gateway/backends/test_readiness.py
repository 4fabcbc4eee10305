from __future__ import annotations

import asyncio

import pytest

from gateway.backends.readiness import Readiness
from gateway.errors import UpstreamUnavailable
from gateway.policy.schema import Target
from gateway.types import Call, Chunks

pytestmark = pytest.mark.anyio


class Probed:
    """A backend that counts its probes, and fails them on demand."""

    def __init__(self, name: str, *, delay: float = 0.0) -> None:
        self.name = name
        self.delay = delay
        self.probes = 0
        self.down: str | None = None

    def stream(self, call: Call, target: Target) -> Chunks:
        raise NotImplementedError

    async def probe(self) -> None:
        self.probes += 1
        await asyncio.sleep(self.delay)
        if self.down:
            raise UpstreamUnavailable(self.down)

    async def aclose(self) -> None: ...


async def test_every_backend_has_a_verdict() -> None:
    good, bad = Probed("good"), Probed("bad")
    bad.down = "gone fishing"
    assert await Readiness({"good": good, "bad": bad}).verdicts() == {"good": None, "bad": "gone fishing"}


async def test_no_backends_no_verdicts() -> None:
    assert await Readiness({}).verdicts() == {}


async def test_askers_share_one_answer_while_it_is_fresh() -> None:
    backend = Probed("b", delay=0.02)
    readiness = Readiness({"b": backend}, fresh=60.0)
    answers = await asyncio.gather(*(readiness.verdicts() for _ in range(50)))
    assert answers == [{"b": None}] * 50
    await readiness.verdicts()
    assert backend.probes == 1


async def test_a_stale_answer_is_asked_for_again() -> None:
    backend = Probed("b")
    readiness = Readiness({"b": backend}, fresh=0.0)
    assert await readiness.verdicts() == {"b": None}
    backend.down = "gone"
    await asyncio.sleep(0.002)
    assert await readiness.verdicts() == {"b": "gone"}
    backend.down = None
    await asyncio.sleep(0.002)
    assert await readiness.verdicts() == {"b": None}


async def test_an_asker_that_leaves_takes_nobodys_answer_away() -> None:
    backend = Probed("b", delay=0.05)
    readiness = Readiness({"b": backend})
    first, second = (asyncio.create_task(readiness.verdicts()) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    assert await second == {"b": None}
    assert backend.probes == 1
