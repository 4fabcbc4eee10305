"""``select: score`` between a router and what is asked in place of backends."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any
from weakref import ref

import pytest

from gateway.engine_load import EngineLoad
from gateway.errors import UpstreamFailed
from gateway.policy.members import Member
from gateway.policy.schema import Policy
from gateway.routing.asked import asked_of
from gateway.routing.held import Holding
from gateway.routing.router import Router
from gateway.routing.score import Scores
from gateway.routing.scored import Scored
from gateway.routing.selector import Caller
from gateway.routing.told_holdings import ToldHoldings
from gateway.types import Call, Chunk, Chunks, Principal, Usage
from tests.fakes import a_call, policy

pytestmark = pytest.mark.anyio
PLACES = {"a": "east", "b": "east", "c": "east", "d": "west"}
LONG = "What was said before. " * 400


class Figures:
    cold: frozenset[tuple[str, str]] = frozenset()

    def saturation(self, backend: str, caller: Caller | None = None, /) -> float:
        return 0.0

    def load(self, backend: str, /) -> int:
        return 0

    def told(self, backend: str, /) -> EngineLoad | None:
        return None

    def has_capacity(self, backend: str, tokens: int, caller: Caller | None = None, /) -> bool:
        return True


class Nobody:
    """Who says that no replica holds anything."""

    def of(self, call: Call, replicas: Sequence[str], /) -> Holding:
        return Holding(100, dict.fromkeys(replicas, 0))


class Gateway:
    def __init__(self, *names: str, select: str = "score") -> None:
        self.now = 0.0
        self.fails = False
        self.cached: int | None = None
        backends = {
            name: {"kind": "openai", "base_url": f"http://{name}/v1", "api_key": "k"} for name in names
        }
        targets = [{"backend": name, "model": "x"} for name in names]
        self.policy: Policy = policy(backends=backends, models={"m": {"targets": targets, "select": select}})
        self.scores = Scores(clock=lambda: self.now)
        scored = Scored.of(self.policy, self.scores, Figures())
        assert scored is not None
        self.scored = scored
        self.router = Router(self.policy, names, Figures(), random=Random(1), scored=scored)
        self.send = scored.handler(self._answers)
        self.send_whole = scored.whole_handler(self._whole)

    async def _answers(self, call: Call) -> Chunks:
        self.now += 0.1
        if self.fails:
            raise UpstreamFailed("It does not.")
        yield Chunk(delta={"role": "assistant"})
        yield Chunk(delta={"content": "a"})
        if self.cached is not None:
            yield Chunk(usage=Usage(2000, 2, cached=self.cached))

    async def _whole(self, call: Call) -> list[Chunk]:
        return [chunk async for chunk in self._answers(call)]

    def call(self, text: str = LONG, number: int = 0, **more: Any) -> Call:
        messages = ({"role": "system", "content": text}, {"role": "user", "content": f"{number}"})
        return a_call(policy_=self.policy, request_id=f"req_{number}", messages=messages, **more)

    def routed(self, call: Call) -> str:
        call.candidates = self.router.plan(call)
        call.candidate = call.candidates[0]
        return call.candidate.target.backend


async def test_a_prompt_goes_where_it_went_before_and_the_receipt_says_why() -> None:
    gateway = Gateway("a", "b", "c", "d")
    first = gateway.call(number=1)
    where = gateway.routed(first)
    assert len([chunk async for chunk in gateway.send(first)]) == 2
    for number in range(2, 12):
        again = gateway.call(number=number)
        assert gateway.routed(again) == where
    (best, *others) = again.receipt.notes["score"]["m"]["looked_at"]
    assert best["backend"] == where
    assert best["held_tokens"] > 0.9 * again.receipt.notes["score"]["m"]["prompt_tokens"]
    assert others and all(one["first_token_seconds"] > best["first_token_seconds"] for one in others)


async def test_another_tenants_and_another_models_prompts_are_others() -> None:
    gateway = Gateway("a", "b")
    mine = asked_of(gateway.call(), "x")
    assert asked_of(gateway.call(), "x").prefix == mine.prefix
    assert asked_of(gateway.call(), "y").prefix.blocks[0] != mine.prefix.blocks[0]
    other = gateway.call(principal=Principal("k", "other"))
    assert asked_of(other, "x").prefix.blocks[0] != mine.prefix.blocks[0]
    longer = asked_of(gateway.call(text=LONG * 200), "x")
    assert longer.prefix.blocks[:5] == mine.prefix.blocks[:5]
    assert longer.tokens > 400_000


@pytest.mark.parametrize("how", ["stream", "whole", "fails", "left"])
async def test_nothing_is_on_its_way_once_it_has_ended_however_it_ends(how: str) -> None:
    gateway = Gateway("a", "b")
    gateway.fails = how == "fails"
    call = gateway.call(stream=how != "whole")
    where = gateway.routed(call)
    outlook = gateway.scores.known()[where]
    if how == "whole":
        await gateway.send_whole(call)
    elif how == "fails":
        with pytest.raises(UpstreamFailed):
            await anext(gateway.send(call))
    else:
        chunks = gateway.send(call)
        await anext(chunks)
        assert (outlook.running, outlook.ahead) == (1, 0.0)
        if how == "left":
            await chunks.aclose()
        else:
            assert [chunk async for chunk in chunks]
    assert (outlook.running, outlook.ahead) == (0, 0.0)
    assert (outlook.speed is not None) == (how in ("stream", "left"))


async def test_one_that_tells_that_it_had_nothing_is_taken_to_hold_less_of_all() -> None:
    gateway = Gateway("a", "b")
    for number in range(80):
        gateway.cached = 1 if number < 2 else 0
        call = gateway.call(number=number)
        gateway.routed(call)
        _ = [chunk async for chunk in gateway.send(call)]
    share = gateway.scores.holdings._share  # type: ignore[attr-defined]
    assert min(share.values()) < 0.2


async def test_a_server_that_never_tells_what_it_had_loses_no_credit() -> None:
    gateway = Gateway("a", "b")
    gateway.cached = 0
    for number in range(20):
        call = gateway.call(number=number)
        gateway.routed(call)
        _ = [chunk async for chunk in gateway.send(call)]
    assert not gateway.scores.holdings._share  # type: ignore[attr-defined]


class Shares:
    """A rotation that says what it is told."""

    zone: str | None = None

    def __init__(self, **shares: float) -> None:
        self.shares = shares

    def share(self, name: str, /) -> float:
        return self.shares.get(name.removeprefix("pool@"), 1.0)


@pytest.mark.parametrize("zone", [None, "east"])
async def test_zones_slow_starts_and_ejections_go_before_scores(zone: str | None) -> None:
    found = tuple(Member(f"pool@{name}", zone=where) for name, where in PLACES.items())
    gateway = Gateway("pool")
    rotation = Shares(c=0.0, a=0.1)
    rotation.zone = zone
    router = Router(
        gateway.policy,
        ["pool"],
        Figures(),
        random=Random(1),
        members={"pool": found},
        rotation=rotation,
        scored=gateway.scored,
    )
    firsts: Counter[str] = Counter()
    for number in range(300):
        call = gateway.call(text=f"{number}" + LONG, number=number)
        plan = [one.target.backend.removeprefix("pool@") for one in router.plan(call)]
        assert sorted(plan) == ["a", "b", "c", "d"]
        assert plan[-1] == "c"  # which is ejected
        assert zone is None or set(plan[:2]) == {"a", "b"}
        firsts[plan[0]] += 1
        call.candidate = router.plan(call)[0]
        looked = call.receipt.notes["score"]["m"]["looked_at"]
        assert plan[0] in {one["backend"].removeprefix("pool@") for one in looked}
    assert 0 < firsts["a"] < firsts["b"] / 3


async def test_what_is_kept_of_calls_that_are_never_sent_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.routing.scored.ON_THEIR_WAY", 5)
    gateway = Gateway("a", "b")
    for number in range(20):
        gateway.routed(gateway.call(number=number))
    assert len(gateway.scored._routed) == 5


def test_a_policy_that_scores_nothing_has_none() -> None:
    one = policy(models={"m": {"targets": [{"backend": "up", "model": "x"}]}})
    assert Scored.of(one, Scores(), Figures()) is None


@pytest.mark.parametrize("how", ["sent", "routed", "copied"])
async def test_what_is_remembered_of_requests_does_not_keep_their_texts(how: str) -> None:
    gateway = Gateway("a", "b")
    held = gateway.scores.holdings = ToldHoldings(Nobody())
    call = gateway.call()
    gone = ref(call)
    gateway.routed(call)
    if how == "copied":  # as a copy, or a retry of another text, is
        call = replace(call, request=replace(call.request, n=2))
        call.candidate = call.candidates[0]
    if how != "routed":
        assert len([chunk async for chunk in gateway.send(call)]) == 2
    assert held is gateway.scores.holdings
    del call
    gc.collect()
    assert gone() is None


async def test_a_second_attempt_is_looked_at_anew() -> None:
    gateway = Gateway("a", "b")
    gateway.fails = True
    call = gateway.call()
    first = gateway.routed(call)
    for candidate in call.candidates:
        call.candidate = candidate
        with pytest.raises(UpstreamFailed):
            [chunk async for chunk in gateway.send(call)]
    assert {one.running for one in gateway.scores.known().values()} == {0}
    assert len(call.candidates) == 2 and first in gateway.scores.known()
