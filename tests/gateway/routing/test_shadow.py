from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from gateway.errors import Overloaded
from gateway.policy.schema import Shadow
from gateway.routing.shadow import Shadows, copy_of
from gateway.types import Call, Chunk, Chunks, Principal
from tests.fakes import CANDIDATE, a_call, policy, within

pytestmark = pytest.mark.anyio

RULE = Shadow(model="s")


class Model:
    """The next handler: it answers in two chunks, once it may."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.calls: list[Call] = []
        self.go = asyncio.Event()
        self.go.set()
        self.read = 0
        self.closed = 0

    async def __call__(self, call: Call) -> Chunks:
        self.calls.append(call)
        call.candidate = CANDIDATE
        call.reply_headers["x-tollgate-attempts"] = "2"
        call.receipt.note("route", model=call.model)
        try:
            await self.go.wait()
            yield Chunk(delta={"content": "a"})
            if self.error is not None:
                raise self.error
            yield Chunk(delta={})
            self.read += 1
        finally:
            self.closed += 1


class Counts(Counter[tuple[str, str]]):
    def __call__(self, model: str, status: str) -> None:
        self[model, status] += 1


def shadowed(**more: Any) -> Call:
    target = [{"backend": "up", "model": "x"}]
    models = {
        "m": {"targets": target},
        "s": {"targets": target, "timeouts": {"total": "50ms"}, "aliases": ["t"]},
    }
    return a_call(policy_=policy(models=models, **more.pop("policy", {})), **more)


@pytest.fixture
async def shadows() -> AsyncIterator[Shadows]:
    here = Shadows()
    yield here
    await here.aclose()


async def settled(shadows: Shadows) -> None:
    for _ in range(1000):
        if not shadows.in_flight:
            return
        await asyncio.sleep(0.001)
    pytest.fail("a shadow is still under way")


async def test_the_copy_is_sent_read_to_its_end_and_counted(shadows: Shadows) -> None:
    model, counts, call = Model(), Counts(), shadowed()
    shadows.send(call, RULE, model, counts)
    assert model.calls == [], "the caller does not wait for it"
    assert call.receipt.notes["shadow"] == {"model": "s"}
    await settled(shadows)
    assert (model.read, model.closed) == (1, 1)
    assert counts == {("s", "200"): 1}
    told = call.receipt.notes["shadow"]
    assert (told["model"], told["outcome"]) == ("s", "200")
    assert told["seconds"] >= 0


async def test_the_caller_sees_nothing_of_it(shadows: Shadows) -> None:
    call = shadowed(headers={"traceparent": "00-1-2-01"})
    model = Model()
    shadows.send(call, RULE, model, Counts())
    await settled(shadows)
    assert call.candidate is None
    assert call.reply_headers == {}
    assert list(call.receipt.notes) == ["shadow"]


def test_what_the_copy_is() -> None:
    headers = {"traceparent": "00-1-2-01"}
    call = shadowed(headers=headers, include_usage=True, params={"temperature": 0.5})
    call.local_only = True
    call.candidates, call.candidate, call.deadline = (CANDIDATE,), CANDIDATE, 1.0
    copy = copy_of(call, "t")
    assert (copy.request_id, copy.model, copy.request.model) == ("req_test-shadow", "s", "t")
    assert copy.receipt.request_id == "req_test-shadow"
    assert (copy.request.stream, copy.request.include_usage) == (False, False)
    assert (copy.request.messages, copy.request.params) == (call.request.messages, call.request.params)
    assert copy.headers == {"x-request-id": "req_test-shadow"}
    assert copy.local_only
    assert copy.shadow
    assert not call.shadow
    assert copy.principal.tenant == "acme"
    assert (copy.candidates, copy.candidate, copy.deadline) == ((), None, None)
    for name in ("receipt", "reply_headers", "upstream_usage", "hints", "headers"):
        assert getattr(copy, name) is not getattr(call, name), name


@pytest.mark.parametrize(
    ("tier", "lowest"), [("gold", "free"), ("free", "free"), ("not described", "not described")]
)
def test_it_comes_behind_everybody_else(tier: str, lowest: str) -> None:
    tiers = {"gold": {"priority": 2}, "free": {"priority": 1}, "trial": {"priority": 1, "weight": 3.0}}
    call = shadowed(policy={"tiers": tiers}, principal=Principal("k", "acme", tier=tier))
    assert copy_of(call, "s").principal.tier == lowest


async def test_the_share_is_kept() -> None:
    shadows, counts, model = Shadows(max_in_flight=10**6, random=Random(7)), Counts(), Model()
    call = shadowed()
    for _ in range(2000):
        shadows.send(call, Shadow(model="s", share=0.25), model, counts)
    for _ in range(100):
        shadows.send(call, Shadow(model="s", share=0.0), model, counts)
    sent = shadows.in_flight
    assert sent / 2000 == pytest.approx(0.25, abs=0.04)
    await settled(shadows)
    assert counts == {("s", "200"): sent}
    await shadows.aclose()


@pytest.mark.parametrize(
    ("error", "status"),
    [(Overloaded("full"), "503"), (ZeroDivisionError("a bug"), "500")],
    ids=["503", "bug"],
)
async def test_failures_are_counted_and_go_no_further(
    shadows: Shadows, error: Exception, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    counts, call = Counts(), shadowed()
    shadows.send(call, RULE, Model(error), counts)
    await settled(shadows)
    assert counts == {("s", status): 1}
    assert call.receipt.notes["shadow"]["outcome"] == status
    assert ("req_test-shadow" in caplog.text) == (status == "500")


async def test_one_that_takes_too_long_is_given_up(shadows: Shadows) -> None:
    counts, model = Counts(), Model()
    model.go.clear()
    shadows.send(shadowed(), RULE, model, counts)
    await settled(shadows)
    assert counts == {("s", "504"): 1}
    assert model.closed == 1


async def test_there_are_only_so_many_at_once() -> None:
    shadows, counts, model = Shadows(max_in_flight=2), Counts(), Model()
    model.go.clear()
    calls = [shadowed() for _ in range(3)]
    for call in calls:
        shadows.send(call, RULE, model, counts)
    assert shadows.in_flight == 2
    assert counts == {("s", "skipped"): 1}
    assert calls[2].receipt.notes["shadow"] == {"model": "s", "outcome": "skipped"}
    model.go.set()
    await settled(shadows)
    shadows.send(calls[2], RULE, model, counts)
    await settled(shadows)
    assert counts == {("s", "skipped"): 1, ("s", "200"): 3}
    await shadows.aclose()


async def test_closing_ends_them_and_takes_no_more() -> None:
    shadows, counts, model = Shadows(), Counts(), Model()
    model.go.clear()
    shadows.send(shadowed(), RULE, model, counts)
    await asyncio.sleep(0)
    async with within(0.04):
        await shadows.aclose()
    assert (shadows.in_flight, model.closed) == (0, 1)
    assert counts == {("s", "499"): 1}
    shadows.send(shadowed(), RULE, model, counts)
    assert shadows.in_flight == 0


async def test_a_model_that_is_not_there_harms_nobody(shadows: Shadows) -> None:
    counts = Counts()
    shadows.send(shadowed(), Shadow(model="gone"), Model(), counts)
    await settled(shadows)
    assert counts == {("gone", "500"): 1}
