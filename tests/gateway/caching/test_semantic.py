"""What is asked of the sidecar and when, and what becomes of a request when it does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.caching.key import Partition
from gateway.caching.semantic import Facts, Semantic
from gateway.policy.schema import SemanticCache
from gateway.sidecar.api import Hit, LookupResult, SidecarBusy, SidecarDown, SidecarError, SidecarLoading
from tests.fakes import within

pytestmark = pytest.mark.anyio

ASKED = Partition("p", "What is a duck?")


class Index:
    """As much of the sidecar as caches need: a question's hit is told beforehand."""

    def __init__(self) -> None:
        self.look = LookupResult(None, "empty")
        self.error: Exception | None = None
        self.seconds = 0.0
        self.asked: list[tuple[str, str, float, float]] = []
        self.told: list[Any] = []

    async def look_up(self, partition: str, question: str, *, budget: float, floor: float) -> LookupResult:
        await self._work()
        self.asked.append((partition, question, budget, floor))
        return self.look

    async def remember(self, partition: str, question: str, payload: bytes, *, key: str, ttl: float) -> None:
        await self._work()
        self.told.append((partition, question, payload, key, ttl))

    async def forget(self, partition: str, key: str) -> None:
        await self._work()
        self.told.append((partition, key))

    async def _work(self) -> None:
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error


def made(index: Index, **config: Any) -> Semantic:
    return Semantic(SemanticCache(**config), index, lambda question: "today" in question)  # type: ignore[arg-type]


async def test_a_hit_and_what_the_receipt_is_told() -> None:
    index = Index()
    index.look = LookupResult(Hit(b"x", 0.98, 0.97, 12.0), "hit", 0.98)
    facts: Facts = {}
    look = await made(index, error_budget=0.02, threshold=0.5).look_up(ASKED, facts, max_age=None)
    assert look is not None and look.hit is not None and look.hit.payload == b"x"
    assert facts == {"semantic": "hit", "similarity": 0.98, "confidence": 0.97, "age": 12.0}
    assert index.asked == [("p", "What is a duck?", 0.02, 0.5)]


@pytest.mark.parametrize(("max_age", "ttl"), [(11.0, "1h"), (None, "11s")])
async def test_what_is_too_old(max_age: float | None, ttl: str) -> None:
    index = Index()
    index.look = LookupResult(Hit(b"x", 0.98, 0.97, 12.0), "hit", 0.98)
    facts: Facts = {}
    look = await made(index, ttl=ttl).look_up(ASKED, facts, max_age=max_age)
    assert look is not None and look.hit is None
    assert facts["semantic"] == "too_old"


@pytest.mark.parametrize("error", [SidecarDown, SidecarLoading, SidecarBusy, SidecarError])
async def test_a_sidecar_that_fails_is_a_miss(error: type[SidecarError]) -> None:
    index = Index()
    index.error = error("the question was What is a duck?")
    facts: Facts = {}
    assert await made(index).look_up(ASKED, facts, max_age=None) is None
    assert facts == {"semantic": error.__name__}


async def test_one_that_is_slow_is_not_waited_for() -> None:
    index = Index()
    index.seconds = 30.0
    facts: Facts = {}
    async with within(0.5):
        assert await made(index).look_up(ASKED, facts, max_age=None) is None
    assert facts == {"semantic": "timeout"}


async def test_questions_about_the_present_are_left_alone() -> None:
    index = Index()
    asked, facts = Partition("p", "What is new today?"), Facts()
    semantic = made(index)
    assert await semantic.look_up(asked, facts, max_age=None) is None
    assert facts == {"semantic": "time_sensitive"}
    assert not semantic.remember(asked, "k", b"x")
    await semantic.aclose()
    assert (index.asked, index.told) == ([], [])


async def test_or_kept_for_a_short_while() -> None:
    index = Index()
    semantic = made(index, time_sensitive_ttl="10s")
    assert semantic.remember(Partition("p", "What is new today?"), "k", b"x")
    assert semantic.remember(ASKED, "l", b"y")
    await semantic.aclose()
    assert [entry[-1] for entry in index.told] == [10.0, 3600.0]


async def test_what_is_told_keeps_its_order() -> None:
    index = Index()
    semantic = made(index)
    semantic.remember(ASKED, "k", b"x")
    semantic.forget(ASKED, "k")
    semantic.remember(ASKED, "k", b"y")
    await semantic.aclose()
    assert index.told == [
        ("p", ASKED.question, b"x", "k", 3600.0),
        ("p", "k"),
        ("p", ASKED.question, b"y", "k", 3600.0),
    ]


async def test_too_long_or_too_many_are_not_kept() -> None:
    index = Index()
    index.seconds = 30.0
    semantic = made(index, max_entry="3B")
    assert not semantic.remember(ASKED, "k", b"long")
    taken = [semantic.remember(ASKED, str(n), b"x") for n in range(100)]
    assert taken.count(True) == 64
    for task in semantic._tasks:
        task.cancel()
    await semantic.aclose()


async def test_an_eviction_waits_for_the_sidecar_to_be_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.caching.semantic.SECONDS_BETWEEN", 0.01)
    index = Index()
    index.error = SidecarDown("gone")
    semantic = made(index)
    semantic.forget(ASKED, "k")
    await asyncio.sleep(0.03)
    index.error = None
    await semantic.aclose()
    assert index.told == [("p", "k")]


async def test_where_it_is_wanted_the_question_is_told_by_its_projection() -> None:
    class Projects(Index):
        async def look_up(  # type: ignore[override]
            self, partition: str, question: str, *, budget: float, floor: float, projects: bool = False
        ) -> LookupResult:
            return self.look._replace(projection=(1, -2)) if projects else self.look

    def semantic(*, projects: bool) -> Semantic:
        return Semantic(SemanticCache(), Projects(), lambda _: False, projects=projects)  # type: ignore[arg-type]

    told: Facts = {}
    await semantic(projects=True).look_up(ASKED, told, max_age=None)
    assert told == {"semantic": "empty", "projection": (1, -2)}
    told = {}
    await semantic(projects=False).look_up(ASKED, told, max_age=None)
    assert told == {"semantic": "empty"}
