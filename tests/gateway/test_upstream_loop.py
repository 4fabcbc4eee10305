from __future__ import annotations

from random import Random
from typing import Any

import pytest

from gateway.errors import ModelUnavailable, UpstreamFailed
from gateway.routing.router import Router
from gateway.routing.selector import Caller
from gateway.types import Call, Chunk, Chunks
from tests.fakes import a_call, policy
from tests.gateway.upstream_loops import upstream_loop

pytestmark = pytest.mark.anyio


class Idle:
    def saturation(self, backend: str, caller: Caller | None = None, /) -> float:
        return 0.0

    def load(self, backend: str, /) -> int:
        return 0

    cold: frozenset[tuple[str, str]] = frozenset()

    def has_capacity(self, backend: str, tokens: int, caller: Caller | None = None, /) -> bool:
        return True


class Taken:
    """What is asked in place of backends; it remembers what it was given. Only the candidate ``answers`` does."""

    def __init__(self, answers: int = 0) -> None:
        self.answers = answers
        self.given: list[tuple[Any, Any]] = []
        self.closed = 0

    async def __call__(self, call: Call) -> Chunks:
        self.given.append((call.candidate, call.candidates))
        if call.candidate is not call.candidates[self.answers]:
            raise UpstreamFailed("It does not.")
        try:
            yield Chunk(delta={"content": "a"})
            yield Chunk(delta={"content": "b"})
        finally:
            self.closed += 1


def over(*targets: dict[str, Any], **more: Any) -> Call:
    return a_call(
        policy_=policy(
            models={
                "m": {"targets": list(targets), "fallbacks": ["f"], **more},
                "f": {"targets": [{"backend": "up", "model": "f-upstream"}]},
            }
        )
    )


A, B = {"backend": "up", "model": "a"}, {"backend": "up", "model": "b"}


def a_router(call: Call) -> Router:
    return Router(call.policy, {"up"}, Idle(), random=Random(7))


async def test_the_plan_goes_on_with_the_call_and_into_the_receipt() -> None:
    call, taken = over(A), Taken()
    chunks = [chunk async for chunk in upstream_loop(taken, call.policy, router=a_router(call))(call)]
    assert len(chunks) == 2
    ((candidate, candidates),) = taken.given
    assert [(one.model, one.target.model, one.why) for one in candidates] == [
        ("m", "a", "primary"),
        ("f", "f-upstream", "fallback"),
    ]
    assert candidate is candidates[0]
    assert call.receipt.notes["route"] == {
        "model": "m",
        "candidates": ["up/a", "up/f-upstream"],
        "why": "primary",
    }


async def test_nowhere_to_go() -> None:
    call, taken = over(A, fallbacks=[]), Taken()
    router = Router(call.policy, set(), Idle())
    with pytest.raises(ModelUnavailable, match="none of its backends is in use"):
        await anext(upstream_loop(taken, call.policy, router=router)(call))
    assert taken.given == []


async def test_a_reader_that_leaves_closes_what_is_behind() -> None:
    call, taken = over(A), Taken()
    chunks = upstream_loop(taken, call.policy, router=a_router(call))(call)
    await anext(chunks)
    await chunks.aclose()
    assert taken.closed == 1


async def test_who_answered_in_place_of_the_first_is_asked_first_from_then_on() -> None:
    call = over(A, B, select="prefix_affinity", retry={"attempts": 1})
    router = a_router(call)
    firsts = []
    for answers in (0, 1, 0, 0):
        taken = Taken(answers)
        async for _ in upstream_loop(taken, call.policy, router=router)(call):
            pass
        firsts.append(taken.given[0][0].target.model)
    assert firsts[0] == firsts[1]
    assert firsts[2] == firsts[3] != firsts[0]
