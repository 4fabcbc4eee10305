"""The cache between quotas above it and a scripted model below: what is served, shared, kept, billed and told."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import pytest

from gateway import errors
from gateway.caching.caches import Caches
from gateway.metering.bill import Bill
from gateway.observe.ended import Ended
from gateway.observe.metrics import Metrics
from gateway.policy.schema import Policy, Timeouts
from gateway.quota.quotas import Quotas
from gateway.sidecar.api import Hit, LookupResult, SidecarDown
from gateway.stages.cache import cache
from gateway.stages.record import Observers, record
from gateway.types import Call, Candidate, Chunk, Chunks, Handler, Principal, UpstreamUsage, Usage
from tests.conftest import RedisServer
from tests.fakes import CANDIDATE, TARGET, a_call, policy

pytestmark = pytest.mark.anyio

USAGE = Usage(7, 3)
ANSWER = (
    Chunk(delta={"role": "assistant", "content": "Quack"}),
    Chunk(delta={"content": "!"}),
    Chunk(delta={}, finish_reason="stop", usage=USAGE),
)


class Model:
    """Answers as told, counts its calls, and waits where there is a gate."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.steps: tuple[Chunk | BaseException | None, ...] = ANSWER
        self.candidate: Candidate | None = CANDIDATE
        self.gate: asyncio.Event | None = None
        self.notes: dict[str, Any] = {}
        """What an output guard tells the receipt."""
        self.closed = 0

    async def __call__(self, call: Call) -> Chunks:
        self.calls.append(call)
        call.candidate = self.candidate
        usage: Usage | None = None
        try:
            for step in self.steps:
                if self.gate is not None:
                    await self.gate.wait()
                if isinstance(step, BaseException):
                    raise step
                if step is None:
                    await asyncio.sleep(60)
                    continue
                usage = step.usage or usage
                yield Chunk(
                    step.index, step.delta, step.finish_reason, usage=step.usage, revocation=step.revocation
                )
        finally:
            if usage is not None:
                call.upstream_usage.append(UpstreamUsage(TARGET, usage))
            self.closed += 1
            if self.notes:
                call.receipt.note("guard_output", **self.notes)


class Sidecar:
    """An index in which all questions of a partition mean the same."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, bytes]] = {}
        self.down = False
        self.reason = "hit"

    async def look_up(self, partition: str, question: str, *, budget: float, floor: float) -> LookupResult:
        if self.down:
            raise SidecarDown("gone")
        found = list(self.entries.get(partition, {}).values())
        if not found:
            return LookupResult(None, "empty")
        return LookupResult(Hit(found[-1], 0.97, 0.99, 1.0), self.reason, 0.97)

    async def remember(self, partition: str, question: str, payload: bytes, *, key: str, ttl: float) -> None:
        self.entries.setdefault(partition, {})[key] = payload

    async def forget(self, partition: str, key: str) -> None:
        self.entries.get(partition, {}).pop(key, None)


class Ledger:
    def __init__(self) -> None:
        self.entries: list[tuple[str, int, int]] = []

    def record(self, call: Call, ended: Ended) -> None:
        self.entries.append((call.request_id, ended.bill.tokens, ended.bill.nanodollars))

    def record_for_house(self, call: Call, bill: Bill) -> None:
        raise AssertionError("none of these is a batch's")


class Fixture:
    def __init__(self, policy_: Policy, sidecar: Sidecar | None = None) -> None:
        self.policy = policy_
        self.model = Model()
        self.sidecar = sidecar or Sidecar()
        self.metrics = Metrics()
        self.ledger = Ledger()
        self.quotas = Quotas("memory")
        self.now = 1000.0
        self.caches = self.open()
        self.handler = self.built()

    def open(self, before: Caches | None = None) -> Caches:
        return Caches.open(
            self.policy,
            sidecar=self.sidecar,  # type: ignore[arg-type]
            is_time_sensitive=lambda question: "today" in question,
            before=before,
            clock=lambda: self.now,
        )

    def built(self) -> Handler:
        return record(Observers(self.quotas, self.ledger))(cache(self.caches, self.metrics)(self.model))

    def call(self, request_id: str = "r", tenant: str = "acme", key: str = "k", **more: Any) -> Call:
        control = more.pop("cache_control", "")
        deadline = more.pop("deadline", None)
        call = a_call(policy_=self.policy, principal=Principal(key, tenant), request_id=request_id, **more)
        call.cache_control, call.deadline = control, deadline
        return call

    async def ask(self, request_id: str = "r", **more: Any) -> tuple[Call, str]:
        call = self.call(request_id, **more)
        async with aclosing(self.handler(call)) as chunks:
            said = [chunk async for chunk in chunks]
        for _ in range(5):
            await asyncio.sleep(0)
        return call, "".join([chunk.delta.get("content") or "" for chunk in said if chunk.delta])

    async def header(self, **more: Any) -> str | None:
        call, _ = await self.ask(**more)
        return call.reply_headers.get("x-tollgate-cache")

    async def aclose(self) -> None:
        for resource in self.caches.resources:
            await resource.aclose()


def a_policy(**caches: Any) -> Policy:
    return policy(
        caches=caches,
        prices={"upstream-model": {"input": 1.0, "output": 2.0}},
        store=caches.pop("store", "memory"),
    )


@asynccontextmanager
async def made(**caches: Any) -> AsyncIterator[Fixture]:
    fixture = Fixture(a_policy(**caches))
    try:
        yield fixture
    finally:
        await fixture.aclose()


@pytest.fixture
async def exact() -> AsyncIterator[Fixture]:
    async with made(exact={}) as fixture:
        yield fixture


@pytest.fixture
async def both() -> AsyncIterator[Fixture]:
    async with made(exact={}, semantic={}) as fixture:
        yield fixture


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not look like a server that is away."""
    monkeypatch.setattr("gateway.caching.exact.TIMEOUT", 3.0)
    monkeypatch.setattr("gateway.caching.semantic.SECONDS_TO_LOOK", 3.0)


def question(text: str) -> Any:
    return ({"role": "user", "content": text},)


async def test_the_same_again(exact: Fixture) -> None:
    first, said = await exact.ask("a")
    assert (said, first.cached, first.reply_headers["x-tollgate-cache"]) == ("Quack!", None, "miss")
    second, again = await exact.ask("b")
    assert (again, second.cached, second.reply_headers["x-tollgate-cache"]) == ("Quack!", "exact", "exact")
    assert len(exact.model.calls) == 1
    assert second.candidate is not None
    assert (second.candidate.model, second.candidate.target) == ("m", TARGET)
    noted = second.receipt.notes["cache"]
    assert noted.pop("seconds") >= 0 and noted.pop("began") >= 0
    assert noted == {"result": "exact", "age": 0.0}
    assert exact.ledger.entries == [("a", 10, 7000 + 6000), ("b", 0, 0)]
    assert second.receipt.notes["quota"]["source"] == "cache"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
async def test_streamed_or_not_it_is_the_same_answer(exact: Fixture, first: bool, second: bool) -> None:
    _, said = await exact.ask(stream=first)
    call, again = await exact.ask(stream=second)
    assert said == again and call.cached == "exact"


async def test_without_caches_the_answer_is_the_next_handlers_own() -> None:
    answer = Model()(a_call())
    async with made() as fixture:
        assert cache(fixture.caches, fixture.metrics)(lambda call: answer)(a_call()) is answer
        assert await fixture.header() is None
    await answer.aclose()


async def test_it_lives_for_its_time(exact: Fixture) -> None:
    await exact.ask()
    exact.now += 3600.0
    assert await exact.header() == "exact"
    exact.now += 1.0
    assert await exact.header() == "miss"


PATHS = ["memory", "redis", "flight", "semantic"]


@pytest.mark.parametrize("per", ["tenant", "key"])
@pytest.mark.parametrize("path", PATHS)
async def test_nobody_sees_anothers(path: str, per: str, redis_server: RedisServer) -> None:
    """Over each way by which an answer can reach a second caller."""
    caches: dict[str, Any] = {"exact": {"per": per, "single_flight": path == "flight"}}
    if path == "redis":
        caches["store"] = redis_server.url
    if path == "semantic":
        caches = {"semantic": {"per": per}}
    async with made(**caches) as fixture:
        if path == "redis":
            fixture.caches.answers._prefix = f"test:{secrets.token_hex(4)}:"  # type: ignore[union-attr]
        if path == "flight":
            fixture.model.gate = asyncio.Event()
        callers = [("acme", "k"), ("acme", "k2"), ("other", "k"), ("acme ", "k"), ("", "acmek")]
        if path == "flight":
            tasks = [asyncio.create_task(fixture.ask(tenant=t, key=k)) for t, k in [*callers, callers[0]]]
            await asyncio.sleep(0.01)
            fixture.model.gate.set()  # type: ignore[union-attr]
            await asyncio.gather(*tasks)
        else:
            for tenant, key in callers:
                await fixture.ask(tenant=tenant, key=key)
            call, _ = await fixture.ask(tenant="acme", key="k")
            assert call.cached == ("semantic" if path == "semantic" else "exact")
        # Two keys of one tenant share with "per: tenant"; nobody else does.
        assert len(fixture.model.calls) == (4 if per == "tenant" else 5)
        seen = [(c.principal.tenant, c.principal.key_id) for c in fixture.model.calls]
        assert len({tenant if per == "tenant" else (tenant, key) for tenant, key in seen}) == len(seen)


@pytest.mark.parametrize(
    "steps",
    [
        ANSWER[:-1],
        (*ANSWER[:-1], Chunk(delta={}, finish_reason="content_filter")),
        (*ANSWER[:-1], Chunk(delta={}, finish_reason="stop", revocation={"revoked": True})),
        (*ANSWER[:-1], errors.UpstreamFailed("cut")),
        (errors.UpstreamFailed("no"),),
    ],
    ids=["incomplete", "filtered", "cut", "failed", "failed at once"],
)
async def test_what_is_not_whole_is_not_kept(both: Fixture, steps: Any) -> None:
    both.model.steps = steps
    for _ in range(2):
        with suppress(errors.UpstreamFailed):
            await both.ask()
    assert len(both.model.calls) == 2
    assert not any(both.sidecar.entries.values())


@pytest.mark.parametrize("single_flight", [True, False])
@pytest.mark.parametrize("after", [0, 1, 2])
async def test_what_its_client_left_is_not_kept(after: int, single_flight: bool) -> None:
    async with made(exact={"single_flight": single_flight}) as exact:
        exact.model.steps = (*ANSWER[:after], None)
        async with aclosing(exact.handler(exact.call())) as chunks:
            for _ in range(after):
                await anext(chunks)
        assert exact.model.closed == len(exact.model.calls) == (1 if after else 0)
        exact.model.steps = ANSWER
        assert await exact.header() == "miss"


@pytest.mark.parametrize(
    ("candidate", "kept"),
    [
        (CANDIDATE, True),
        (Candidate("m", TARGET, Timeouts(), "spill_over"), True),
        (Candidate("m", TARGET, Timeouts(), "fallback"), False),
        (Candidate("m", TARGET, Timeouts(), "downgrade"), False),
        (Candidate("other", TARGET, Timeouts()), False),
        (Candidate("other", TARGET, Timeouts(), "spill_over"), False),
        (None, False),
    ],
)
async def test_who_stands_in_for_the_model_is_not_kept(
    exact: Fixture, candidate: Candidate | None, kept: bool
) -> None:
    exact.model.candidate = candidate
    await exact.ask()
    call, _ = await exact.ask()
    assert (call.cached == "exact") is kept


async def test_too_long_an_answer_is_not_kept() -> None:
    async with made(exact={"max_entry": "50B"}, semantic={"max_entry": "50B"}) as fixture:
        first, _ = await fixture.ask()
        assert first.receipt.notes["cache"]["outcome"] == "not_kept"
        fixture.model.steps = (Chunk(delta={"content": "x" * 60}), *ANSWER)
        second, said = await fixture.ask()
        assert second.receipt.notes["cache"]["outcome"] == "too_long" and len(said) == 66


async def test_what_was_not_scanned_is_not_kept(both: Fixture) -> None:
    both.model.notes = {"scanned": False}
    call, _ = await both.ask()
    assert call.receipt.notes["cache"]["outcome"] == "unscanned"
    assert not any(both.sidecar.entries.values())
    both.model.notes = {"scanned": True}
    assert await both.header() == "miss"
    call = both.call()
    call.receipt.note("guard_input", scanned=False)
    async with aclosing(both.handler(call)) as chunks:
        async for _ in chunks:
            pass
    assert call.reply_headers["x-tollgate-cache"] == "bypass"
    assert await both.header() == "exact"


async def test_every_follower_of_a_cut_answer_is_told_the_verdict(exact: Fixture) -> None:
    exact.model.gate = asyncio.Event()
    exact.model.notes = {"scanned": False, "cut": {"guard": "toxicity"}}
    revoked = Chunk(delta={}, finish_reason="content_filter", revocation={"revoked": True})
    exact.model.steps = (*ANSWER[:-1], revoked)
    tasks = [asyncio.create_task(exact.ask(name)) for name in "abc"]
    await asyncio.sleep(0.01)
    exact.model.gate.set()
    for call, _ in await asyncio.gather(*tasks):
        assert call.receipt.notes["guard_output"]["cut"] == {"guard": "toxicity"}
    assert len(exact.model.calls) == 1


async def test_a_cut_evicts_what_was_kept(both: Fixture) -> None:
    await both.ask()
    assert await both.header() == "exact" and any(both.sidecar.entries.values())
    both.model.steps = (
        *ANSWER[:-1],
        Chunk(delta={}, finish_reason="content_filter", revocation={"revoked": True}),
    )
    call, _ = await both.ask(cache_control="no-cache")
    assert call.receipt.notes["cache"]["outcome"] == "cut"
    assert not any(both.sidecar.entries.values())
    both.model.steps = ANSWER
    assert await both.header() == "miss"


async def test_no_cache_asks_afresh_and_keeps(exact: Fixture) -> None:
    await exact.ask()
    exact.model.steps = (Chunk(delta={"content": "Moo"}, finish_reason="stop"),)
    assert await exact.header(cache_control="no-cache") == "bypass"
    call, said = await exact.ask()
    assert (call.cached, said, len(exact.model.calls)) == ("exact", "Moo", 2)


async def test_no_store_neither_looks_nor_keeps(exact: Fixture) -> None:
    assert await exact.header(cache_control="no-store") == "bypass"
    assert await exact.header() == "miss"
    assert await exact.header(cache_control="No-Store") == "bypass"
    assert len(exact.model.calls) == 3


async def test_max_age(exact: Fixture) -> None:
    await exact.ask()
    exact.now += 10.0
    assert await exact.header(cache_control="max-age=10") == "exact"
    assert await exact.header(cache_control="max-age=9") == "miss"
    assert await exact.header(cache_control="max-age=0") == "exact"  # it was asked anew in this very moment


@pytest.mark.parametrize("also", ["", ", no-store"])
async def test_only_if_cached(exact: Fixture, also: str) -> None:
    with pytest.raises(errors.NotCached) as raised:
        await exact.ask(cache_control="only-if-cached" + also)
    assert raised.value.status == 504 and not exact.model.calls
    await exact.ask()
    if not also:
        assert await exact.header(cache_control="only-if-cached") == "exact"
        # Both wishes at once cannot be had, and the model is not asked for the one.
        with pytest.raises(errors.NotCached):
            await exact.ask(cache_control="only-if-cached, no-cache")
        assert len(exact.model.calls) == 1


async def test_without_a_cache_nothing_is_cached() -> None:
    """Who asks for what costs nothing is not served what does."""
    async with made() as none:
        with pytest.raises(errors.NotCached):
            await none.ask(cache_control="only-if-cached")
        await none.ask()
        assert len(none.model.calls) == 1


async def test_equal_requests_share_one_call(exact: Fixture) -> None:
    exact.model.gate = asyncio.Event()
    tasks = [asyncio.create_task(exact.ask(name)) for name in "abc"]
    await asyncio.sleep(0.01)
    exact.model.gate.set()
    answers = await asyncio.gather(*tasks)
    assert [said for _, said in answers] == ["Quack!"] * 3
    assert len(exact.model.calls) == 1
    assert sorted(exact.ledger.entries) == [("a", 10, 13000), ("b", 0, 0), ("c", 0, 0)]
    assert [call.reply_headers["x-tollgate-cache"] for call, _ in answers] == ["miss", "exact", "exact"]
    assert answers[1][0].receipt.notes["cache"]["shared"] == "a"
    assert all(call.candidate is CANDIDATE for call, _ in answers)


@pytest.mark.parametrize(
    "other",
    [{"stream": False}, {"deadline": 1e12}, {"cache_control": "no-cache"}, {"params": {"seed": 1}}],
    ids=str,
)
async def test_but_not_these(exact: Fixture, other: dict[str, Any]) -> None:
    exact.model.gate = asyncio.Event()
    tasks = [asyncio.create_task(exact.ask("a")), asyncio.create_task(exact.ask("b", **other))]
    await asyncio.sleep(0.01)
    exact.model.gate.set()
    await asyncio.gather(*tasks)
    assert len(exact.model.calls) == 2


async def test_followers_of_a_leader_that_was_shed_ask_for_themselves(exact: Fixture) -> None:
    exact.model.gate = asyncio.Event()
    exact.model.steps = (errors.Overloaded("full", retry_after=1.0),)
    tasks = [asyncio.create_task(exact.ask(name)) for name in "ab"]
    await asyncio.sleep(0.01)
    exact.model.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [errors.Overloaded] * 2
    assert len(exact.model.calls) == 2


async def test_the_leader_hangs_up_and_the_answer_is_kept(exact: Fixture) -> None:
    exact.model.gate = asyncio.Event()
    leader, follower = (asyncio.create_task(exact.ask(name)) for name in "ab")
    await asyncio.sleep(0.01)
    leader.cancel()
    await asyncio.sleep(0.01)
    # Its limits go on holding what the answer may cost: it is not settled before the end.
    assert exact.ledger.entries == []
    exact.model.gate.set()
    call, said = await follower
    await asyncio.wait([leader])
    assert said == "Quack!" and call.cached == "exact"
    assert sorted(exact.ledger.entries) == [("a", 10, 13000), ("b", 0, 0)]
    exact.model.gate = None
    assert await exact.header() == "exact"
    assert len(exact.model.calls) == 1


async def test_the_same_meaning(both: Fixture) -> None:
    await both.ask("a", messages=question("What is a duck?"))
    call, said = await both.ask("b", messages=question("What are ducks?"))
    assert (call.cached, said, call.reply_headers["x-tollgate-cache"]) == ("semantic", "Quack!", "semantic")
    assert call.receipt.notes["cache"]["similarity"] == 0.97
    assert both.ledger.entries[1] == ("b", 0, 0)
    assert call.candidate is not None and call.candidate.model == "m"


async def test_shadow_mode_only_tells() -> None:
    async with made(semantic={"mode": "shadow"}) as fixture:
        await fixture.ask(messages=question("What is a duck?"))
        call, _ = await fixture.ask(messages=question("What are ducks?"))
        assert call.cached is None and len(fixture.model.calls) == 2
        assert call.receipt.notes["cache"]["would_serve"] is True
        assert call.reply_headers["x-tollgate-cache"] == "miss"
        assert 'result="shadow_hit"' in fixture.metrics.render().decode()


async def test_a_sidecar_that_is_away_is_a_miss(both: Fixture) -> None:
    both.sidecar.down = True
    call, _ = await both.ask(messages=question("What is a duck?"))
    assert call.receipt.notes["cache"]["semantic"] == "SidecarDown"
    assert call.receipt.notes["cache"]["result"] == "miss"


@pytest.mark.parametrize(
    "steps",
    [
        (Chunk(delta={"content": "x"}, finish_reason="length"),),
        (Chunk(delta={"tool_calls": [{"index": 0, "function": {"name": "f"}}]}, finish_reason="stop"),),
    ],
)
async def test_what_the_semantic_cache_does_not_keep(both: Fixture, steps: Any) -> None:
    both.model.steps = steps
    await both.ask()
    assert not any(both.sidecar.entries.values())
    assert await both.header() == "exact"


async def test_questions_about_the_present_are_not_kept_by_meaning(both: Fixture) -> None:
    await both.ask(messages=question("What is new today?"))
    assert not any(both.sidecar.entries.values())


async def test_what_is_no_question_bypasses_a_semantic_cache() -> None:
    async with made(semantic={}) as fixture:
        assert await fixture.header(prompt="Once upon a time") == "bypass"
        assert await fixture.header(n=2) == "bypass"


async def test_entries_live_on_through_unrelated_edits(exact: Fixture) -> None:
    await exact.ask()
    models = {
        "m": {"targets": [{"backend": "up", "model": "upstream-model"}]},
        "n": {"targets": [{"backend": "up", "model": "n"}]},
    }
    exact.policy = policy(caches={"exact": {"max_bytes": "1MiB"}}, models=models)
    exact.caches = exact.open(exact.caches)
    exact.handler = exact.built()
    assert await exact.header() == "exact"
    models["m"] = {"targets": [{"backend": "up", "model": "newer"}]}
    exact.policy = policy(caches={"exact": {}}, models=models)
    exact.caches = exact.open(exact.caches)
    exact.handler = exact.built()
    assert await exact.header() == "miss"


async def test_redis_dies_and_comes_back(own_redis: RedisServer) -> None:
    async with made(exact={}, store=own_redis.url) as fixture:
        await fixture.ask()
        # An answer on its way there is served from here.
        async with asyncio.timeout(300):
            while fixture.caches.answers._unsent:  # type: ignore[union-attr]  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert await fixture.header() == "exact"
        own_redis.kill()
        assert await fixture.header() == "miss"
        assert await fixture.header() == "miss"
        own_redis.start()
        async with asyncio.timeout(300):
            while fixture.caches.answers.down:  # type: ignore[union-attr]  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await fixture.header() == "miss"
        assert await fixture.header() == "exact"


async def test_what_each_cache_did_is_counted(exact: Fixture) -> None:
    await exact.ask()
    await exact.ask()
    await exact.ask(cache_control="no-store")
    page = exact.metrics.render().decode()
    for result in ("miss", "hit", "bypass", "kept"):
        assert f'tollgate_cache_requests_total{{cache="exact",result="{result}"}} 1.0' in page
