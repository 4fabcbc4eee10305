"""The fallback stage over real backends and real sockets, against servers that fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gateway import errors
from gateway.backends.anthropic import AnthropicBackend
from gateway.backends.dispatch import dispatch
from gateway.backends.openai import OpenAIBackend
from gateway.fallback.health import HealthRegistry
from gateway.observe.metrics import Metrics
from gateway.policy.schema import Policy, Target, Timeouts
from gateway.types import (
    Backend,
    Call,
    Candidate,
    Chunk,
    Chunks,
    Handler,
    Purpose,
    TokenEstimate,
    UpstreamUsage,
    Usage,
)
from tests import faults
from tests.fakes import Action, FakeUpstream, Script, a_call, delta, policy, sse, stream, within
from tests.faults import ANSWER, PROMPT_TOKENS, FaultServer, words
from tests.gateway.upstream_loops import attempts

pytestmark = [pytest.mark.anyio, pytest.mark.deadlines]

TIMEOUTS = {"connect": "200ms", "first_token": "150ms", "idle": "150ms", "total": "1s"}


EXPECTED, RESERVED = 20, 600
"""Tokens of an answer: what it usually takes, and what is held for it."""


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Row:
    """Servers in the order in which they are to be tried: backends ``a``, ``b``, ``c`` for models of the same names."""

    policy: Policy
    backends: dict[str, Backend]
    servers: dict[str, FaultServer]
    clock: Clock = field(default_factory=Clock)
    metrics: Metrics = field(default_factory=Metrics)
    following: Callable[[Handler], Handler] = lambda handler: handler

    def __post_init__(self) -> None:
        self.health = HealthRegistry(self.clock)
        self.handler = attempts(
            lambda call: self.following(dispatch(self.backends))(call),
            self.policy,
            health=self.health,
            metrics=self.metrics,
        )

    def call(
        self, *, why: dict[str, str] | None = None, models: dict[str, str] | None = None, **request: Any
    ) -> Call:
        call = a_call(policy_=self.policy, model="a", **request)
        call.estimate = TokenEstimate(PROMPT_TOKENS, EXPECTED, RESERVED)
        call.candidates = tuple(
            Candidate(
                (models or {}).get(name, name),
                Target(backend=name, model=f"{name}-model"),
                self.policy.models[name].timeouts,
                (why or {}).get(name, "fallback" if i else "primary"),
            )
            for i, name in enumerate(self.backends)
        )
        return call

    def attempts(self) -> list[int]:
        return [len(server.requests) for server in self.servers.values()]


@asynccontextmanager
async def row(
    *servers: FaultServer,
    continues: str = "",
    retry: dict[str, Any] | None = None,
    breaker: dict[str, Any] | None = None,
    kind: str = "openai",
    timeouts: dict[str, str] = TIMEOUTS,
) -> AsyncIterator[Row]:
    """``continues`` names the backends that go on from a partial answer."""
    async with AsyncExitStack() as stack:
        named = dict(zip("abc", servers, strict=False))
        backends: dict[str, Backend] = {}
        for name, server in named.items():
            await stack.enter_async_context(server)
            backend = OpenAIBackend(name, base_url=server.base_url, probe_url=server.base_url + "/models")
            stack.push_async_callback(backend.aclose)
            backends[name] = backend
        rules = policy(
            backends={
                name: {
                    "kind": kind,
                    "base_url": server.base_url.removesuffix("/v1" if kind == "engine" else ""),
                    **({"continues": name in continues} if kind == "openai" else {}),
                    **({"breaker": breaker} if breaker else {}),
                }
                for name, server in named.items()
            },
            models={
                name: {
                    "targets": [{"backend": name, "model": f"{name}-model"}],
                    "timeouts": timeouts,
                    "retry": {"backoff": "10ms", **(retry or {})},
                }
                for name in named
            },
        )
        yield Row(rules, backends, named)


async def ask(row: Row, call: Call) -> list[Chunk]:
    async with aclosing(row.handler(call)) as chunks:
        return [chunk async for chunk in chunks]


async def failure(row: Row, call: Call) -> errors.GatewayError:
    with pytest.raises(errors.GatewayError) as caught:
        await ask(row, call)
    return caught.value


def text(chunks: list[Chunk]) -> str:
    return "".join((chunk.delta or {}).get("content") or "" for chunk in chunks)


def outcomes(call: Call) -> list[str]:
    return [attempt["outcome"] for attempt in call.receipt.notes["fallback"]["attempts"]]


def usage(chunks: list[Chunk]) -> Usage | None:
    told = [chunk.usage for chunk in chunks if chunk.usage is not None]
    return told[-1] if told else None


STREAMED = pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])


# Before the first word


@STREAMED
async def test_a_sound_answer_passes_untouched(streamed: bool) -> None:
    async with row(FaultServer()) as r:
        call = r.call(stream=streamed)
        chunks = await ask(r, call)
        assert text(chunks) == ANSWER
        assert chunks[0].delta is not None
        assert chunks[0].delta["role"] == "assistant"
        assert call.candidate is call.candidates[0]
        assert call.reply_headers == {"x-tollgate-model": "a"}
        [attempt] = call.receipt.notes["fallback"]["attempts"]
        assert attempt.pop("seconds") > 0
        # Since the request arrived: the attempt, its way to the server, what comes back.
        assert 0 < attempt.pop("began") <= attempt.pop("sent") <= attempt.pop("first_chunk")
        assert attempt == {"backend": "a", "model": "a-model", "outcome": "ok"}
        [spent] = call.upstream_usage
        assert (spent.target.backend, spent.usage, spent.estimated) == (
            "a",
            Usage(PROMPT_TOKENS, len(words(ANSWER))),
            False,
        )


TRANSIENT = {
    "429": faults.rate_limited,
    "429-soon": faults.rate_limited_for("0"),
    "500": faults.broken,
    "503": faults.unavailable,
    "reset": faults.reset,
}


@STREAMED
@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT)
async def test_what_passes_is_tried_again(fault: faults.Fault, streamed: bool) -> None:
    async with row(FaultServer(fault, faults.sound), FaultServer()) as r:
        call = r.call(stream=streamed)
        assert text(await ask(r, call)) == ANSWER
        assert r.attempts() == [2, 0]
        assert call.reply_headers == {"x-tollgate-model": "a", "x-tollgate-attempts": "2"}
        assert outcomes(call)[1:] == ["ok"]
        # What a server said no to is free; of a connection that broke nobody knows how far the model had come.
        assert [one.purpose for one in call.upstream_usage] == ["attempt"] * (fault is faults.reset) + [
            "answer"
        ]


LASTING: dict[str, tuple[faults.Fault, int, str]] = {
    "429": (faults.rate_limited, 2, "rate_limit_exceeded"),
    "429-much-later": (faults.rate_limited_for("30"), 1, "rate_limit_exceeded"),
    "500": (faults.broken, 2, "upstream_error"),
    "503": (faults.unavailable, 2, "upstream_unavailable"),
    "reset": (faults.reset, 2, "upstream_unavailable"),
    "silence": (faults.silence, 1, "upstream_timeout"),
    "slow-first-token": (faults.slow(0.4), 1, "upstream_timeout"),
    "bad-key": (faults.bad_key, 1, "upstream_auth"),
    "no-such-model": (faults.no_such_model, 1, "model_not_found"),
    "context-length": (faults.context_length, 1, "context_length_exceeded"),
}


@pytest.mark.parametrize("case", LASTING)
async def test_what_lasts_is_left_for_the_next(case: str) -> None:
    fault, tries, code = LASTING[case]
    async with row(FaultServer(fault), FaultServer()) as r, within(1.0):
        call = r.call()
        assert text(await ask(r, call)) == ANSWER
        assert r.attempts() == [tries, 1]
        assert call.candidate is call.candidates[1]
        assert call.model == "a"
        assert call.reply_headers == {"x-tollgate-model": "b", "x-tollgate-attempts": str(tries + 1)}
        assert outcomes(call) == [code] * tries + ["ok"]


@STREAMED
@pytest.mark.parametrize("case", LASTING)
async def test_without_another_the_error_is_the_upstreams(case: str, streamed: bool) -> None:
    fault, tries, code = LASTING[case]
    async with row(FaultServer(fault)) as r, within(2.5):
        call = r.call(stream=streamed)
        error = await failure(r, call)
        assert error.code == code
        assert r.attempts() == [tries]
        assert outcomes(call) == [code] * tries
        assert call.reply_headers.get("x-tollgate-attempts") == (str(tries) if tries > 1 else None)
        heard = {"reset", "silence", "slow-first-token"}
        usual = UpstreamUsage(call.candidates[0].target, Usage(PROMPT_TOKENS, EXPECTED), True, "attempt", "a")
        assert call.upstream_usage == [usual] * (tries if case in heard else 0)


@pytest.mark.parametrize(
    ("fault", "kind"), [(faults.bad_request, errors.Rejected), (faults.content_policy, errors.ContentPolicy)]
)
async def test_what_cannot_succeed_goes_nowhere_else(
    fault: faults.Fault, kind: type[errors.GatewayError]
) -> None:
    async with row(FaultServer(fault), FaultServer()) as r:
        error = await failure(r, r.call())
        assert type(error) is kind
        assert error.status == 400
        assert r.attempts() == [1, 0]


async def test_the_primarys_failure_is_the_one_told() -> None:
    async with row(
        FaultServer(faults.broken), FaultServer(faults.unavailable), FaultServer(faults.bad_request)
    ) as r:
        call = r.call()
        error = await failure(r, call)
        assert "something came loose" in error.message
        assert r.attempts() == [2, 2, 1]
        assert call.reply_headers["x-tollgate-attempts"] == "5"


async def test_a_larger_context_only_for_what_is_too_long() -> None:
    why = {"c": "larger_context"}
    async with row(FaultServer(faults.broken), FaultServer(faults.broken), FaultServer()) as r:
        assert (await failure(r, r.call(why=why))).code == "upstream_error"
        assert r.attempts() == [2, 2, 0]
    async with row(FaultServer(faults.context_length), FaultServer(), FaultServer()) as r:
        call = r.call(why=why)
        assert text(await ask(r, call)) == ANSWER
        assert r.attempts() == [1, 0, 1]
        assert call.candidate is not None
        assert call.candidate.model == "c"
        assert call.receipt.notes["fallback"]["attempts"][1]["why"] == "larger_context"


async def test_too_long_for_a_model_is_too_long_for_all_its_targets() -> None:
    async with row(FaultServer(faults.context_length), FaultServer(), FaultServer()) as r:
        assert text(await ask(r, r.call(models={"b": "a"}))) == ANSWER
        assert r.attempts() == [1, 0, 1]


async def test_that_the_larger_model_is_down_says_more_than_that_the_first_is_too_small() -> None:
    async with row(FaultServer(faults.context_length), FaultServer(faults.unavailable)) as r:
        assert (await failure(r, r.call(why={"b": "larger_context"}))).status == 503


async def test_a_larger_model_that_is_left_alone_can_be_asked_later() -> None:
    servers = FaultServer(faults.context_length), FaultServer(faults.unavailable)
    async with row(*servers, breaker={"failures": 1, "cooldown": "9s"}) as r:
        for wait in (None, 9.0):
            error = await failure(r, r.call(why={"b": "larger_context"}))
            assert error.status == 503
            assert error.retry_after == pytest.approx(wait or 1.0, abs=1)
        assert r.attempts() == [2, 1]


async def test_first_in_line_a_larger_context_is_like_any_other() -> None:
    async with row(FaultServer()) as r:
        assert text(await ask(r, r.call(why={"a": "larger_context"}))) == ANSWER


async def test_a_server_that_asks_for_time_is_given_it_if_it_is_the_only_one() -> None:
    async with row(FaultServer(faults.rate_limited_for("0.2"), faults.sound)) as r:
        start = time.perf_counter()
        assert text(await ask(r, r.call())) == ANSWER
        assert time.perf_counter() - start >= 0.2


@pytest.mark.parametrize(
    ("asked", "limit"), [("11", None), ("1", 0.5), ("5", None)], ids=["patience", "deadline", "total"]
)
async def test_it_is_not_waited_for_in_vain(asked: str, limit: float | None) -> None:
    async with row(FaultServer(faults.rate_limited_for(asked))) as r, within(0.5):
        call = r.call()
        call.deadline = call.started + limit if limit else None
        error = await failure(r, call)
        assert (error.status, error.retry_after) == (429, float(asked))
        assert r.attempts() == [1]


async def test_retries_have_a_budget() -> None:
    async with row(
        FaultServer(faults.broken),
        retry={"attempts": 2, "backoff": "1ms", "budget": 0.2},
        breaker={"failures": 10000},
    ) as r:
        for _ in range(50):
            await failure(r, r.call())
        assert 50 + 10 <= r.attempts()[0] <= 50 + 10 + 10


@pytest.mark.parametrize("purpose", ["shadow", "judge", "verifier"])
async def test_what_no_caller_asked_for_takes_no_retries_from_callers(purpose: Purpose) -> None:
    async with row(FaultServer(faults.broken), retry={"backoff": "1ms", "budget": 0.01}) as r:
        for _ in range(20):
            await failure(r, replace(r.call(), purpose=purpose))
        before = r.attempts()[0]
        assert before == 20 + 10, "they have a budget of their own"
        await failure(r, r.call())
        assert r.attempts()[0] == before + 2


async def test_a_budget_of_nothing_allows_no_retry() -> None:
    async with row(FaultServer(faults.broken), retry={"budget": 0.0}) as r:
        await failure(r, r.call())
        assert r.attempts() == [1]


@pytest.mark.parametrize("attempts", [1, 3])
async def test_as_many_attempts_as_the_policy_says(attempts: int) -> None:
    async with row(FaultServer(faults.broken), retry={"attempts": attempts}) as r:
        await failure(r, r.call())
        assert r.attempts() == [attempts]


async def test_no_attempt_after_the_deadline() -> None:
    async with row(FaultServer(faults.silence), FaultServer()) as r:
        call = r.call()
        call.deadline = call.started + 0.1
        assert (await failure(r, call)).code == "deadline_exceeded"
        assert r.attempts() == [1, 0]


async def test_callers_in_a_hurry_do_not_shut_out_the_others() -> None:
    async with row(FaultServer(faults.silence), breaker={"failures": 1}) as r:
        call = r.call()
        call.deadline = call.started + 0.05
        await failure(r, call)
        assert r.health.breaker(Target(backend="a", model="a-model")).is_closed


async def test_a_cascades_steps_are_told_one_after_the_other() -> None:
    async with row(FaultServer(faults.broken), FaultServer()) as r:
        call = r.call()
        await ask(r, call)
        await ask(r, replace(call))
        assert outcomes(call) == ["upstream_error", "upstream_error", "ok"] * 2


# Our own queue


def full(*names: str, after: float = 3.0) -> Callable[[Handler], Handler]:
    """A queue that has no place at these backends."""

    def stage(following: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            yield Chunk(comment="1 before you")
            if call.target is not None and call.target.backend in names:
                raise errors.Overloaded("full", retry_after=after + names.index(call.target.backend))
            async with aclosing(following(call)) as chunks:
                async for chunk in chunks:
                    yield chunk

        return handle

    return stage


async def test_no_place_here_may_be_a_place_there() -> None:
    async with row(FaultServer(), FaultServer(), breaker={"failures": 1}) as r:
        r.following = full("a")
        call = r.call()
        chunks = await ask(r, call)
        assert text(chunks) == ANSWER
        assert [chunk.comment for chunk in chunks if chunk.comment] == ["1 before you"] * 2
        assert "x-tollgate-attempts" not in call.reply_headers
        assert r.health.breaker(Target(backend="a", model="a-model")).is_closed
        assert outcomes(call) == ["overloaded", "ok"]
        assert 'tollgate_attempts_total{backend="a"' not in r.metrics.render().decode()


async def test_no_place_anywhere() -> None:
    async with row(FaultServer(), FaultServer()) as r:
        r.following = full("b", "a")
        error = await failure(r, r.call())
        assert (error.code, error.retry_after) == ("overloaded", 3.0)
        r.following = full("b")
        r.servers["a"].faults = [faults.broken]
        assert (await failure(r, r.call())).code == "upstream_error"


# The breaker


async def test_a_sick_backend_is_left_alone_then_probed_by_one() -> None:
    async with row(
        FaultServer(faults.broken),
        FaultServer(),
        retry={"attempts": 1},
        breaker={"failures": 3, "cooldown": "5s"},
    ) as r:
        for _ in range(5):
            assert text(await ask(r, r.call())) == ANSWER
        assert r.attempts() == [3, 5]
        call = r.call()
        await ask(r, call)
        assert "x-tollgate-attempts" not in call.reply_headers
        assert call.receipt.notes["fallback"]["breaker_open"] == ["a"]
        r.clock.now += 5.1
        r.servers["a"].faults = [faults.slow(0.05)]
        answers = await asyncio.gather(*(ask(r, r.call()) for _ in range(10)))
        assert {text(chunks) for chunks in answers} == {ANSWER}
        assert r.attempts() == [4, 15]
        await ask(r, r.call())
        assert r.attempts() == [5, 15]


async def test_an_engine_is_let_through_as_soon_as_it_is_there_again() -> None:
    async with row(
        FaultServer(faults.broken), breaker={"failures": 1, "cooldown": "30s"}, kind="engine"
    ) as r:
        assert (await failure(r, r.call())).code == "upstream_error"
        error = await failure(r, r.call())
        assert isinstance(error, errors.UpstreamUnavailable)
        assert error.retry_after == pytest.approx(2.0), "not the cooldown, which ends when it says how it is"


@STREAMED
@pytest.mark.parametrize(("kind", "opens"), [("engine", False), ("openai", True)])
async def test_what_one_death_of_an_engine_ends_counts_once(kind: str, opens: bool, streamed: bool) -> None:
    died = asyncio.Event()
    begun = stream(sse(delta("The")), whole=False) if streamed else ()
    dying = FaultServer(lambda asked: (*begun, died, Action.ABORT))
    breaker = {"failures": 5, "cooldown": "30s"}
    async with row(dying, retry={"attempts": 1}, breaker=breaker, kind=kind, timeouts={}) as r:
        asking = [asyncio.create_task(failure(r, r.call(stream=streamed))) for _ in range(8)]
        await dying.arrived(8)
        died.set()
        assert {error.code for error in await asyncio.gather(*asking)} == {
            "upstream_cut" if streamed else "upstream_unavailable"
        }
        assert r.health.breaker(r.call().candidates[0].target).is_closed is not opens
        # Each that was sent thereafter, and lost, is another one.
        for _ in range(5):
            await failure(r, r.call(stream=streamed))
        assert not r.health.breaker(r.call().candidates[0].target).is_closed


async def test_a_probe_that_fails_starts_the_cooldown_anew() -> None:
    async with row(FaultServer(faults.broken), breaker={"failures": 1, "cooldown": "5s"}) as r:
        assert (await failure(r, r.call())).code == "upstream_error"
        for _ in range(2):
            r.clock.now += 3
            error = await failure(r, r.call())
            assert isinstance(error, errors.UpstreamUnavailable)
            assert error.retry_after == pytest.approx(2.0)
            r.clock.now += 2.1
            assert (await failure(r, r.call())).code == "upstream_error"
        assert r.attempts() == [3]


@pytest.mark.parametrize(
    "refusal", [faults.bad_request, faults.context_length, faults.content_policy, faults.broken]
)
async def test_a_refusal_by_a_fallback_is_not_the_answer_of_one_that_rests(refusal: faults.Fault) -> None:
    """It may serve again soon, and take what its fallback does not."""
    servers = FaultServer(faults.broken), FaultServer(refusal)
    async with row(*servers, retry={"attempts": 1}, breaker={"failures": 1, "cooldown": "9s"}) as r:
        await failure(r, r.call())
        asked = r.attempts()[0]
        error = await failure(r, r.call())
        assert (error.status, error.code, r.attempts()[0]) == (503, "upstream_unavailable", asked)
        assert error.retry_after == pytest.approx(9, abs=1)


async def test_a_refusal_by_a_fallback_is_not_the_answer_of_one_that_is_full() -> None:
    async with row(FaultServer(), FaultServer(faults.bad_request)) as r:

        def full(following: Handler) -> Handler:
            async def handle(call: Call) -> Chunks:
                if call.target is not None and call.target.backend == "a":
                    raise errors.Overloaded("The queue is full.", code="queue_full", retry_after=3.0)
                async with aclosing(following(call)) as chunks:
                    async for chunk in chunks:
                        yield chunk

            return handle

        r.following = full
        assert (await failure(r, r.call())).code == "queue_full"
        assert r.attempts() == [0, 1]


@pytest.mark.parametrize("why", ["spill_over", "fallback"])
async def test_one_that_stands_in_is_not_the_last_to_be_asked(why: str) -> None:
    """It comes first where the model that was asked for is full, or out of use."""
    async with row(FaultServer(faults.bad_request), FaultServer()) as r:
        of = {"a": why, "b": "primary" if why == "spill_over" else "fallback"}
        assert text(await ask(r, r.call(why=of))) == ANSWER


async def test_one_that_has_just_been_given_up_is_not_waited_for() -> None:
    async with row(FaultServer(faults.broken), FaultServer(), breaker={"failures": 1}) as r:
        call = r.call()
        assert text(await ask(r, call)) == ANSWER
        assert r.attempts() == [1, 1]
        assert "breaker_open" not in call.receipt.notes["fallback"]


@pytest.mark.parametrize("fault", [faults.bad_request, faults.rate_limited, faults.content_policy])
async def test_what_is_not_the_backends_fault_does_not_open_it(fault: faults.Fault) -> None:
    async with row(FaultServer(fault), breaker={"failures": 1}) as r:
        await failure(r, r.call())
        assert r.health.breaker(Target(backend="a", model="a-model")).is_closed


async def test_a_probe_whose_client_left_frees_the_slot() -> None:
    async with row(FaultServer(faults.broken), breaker={"failures": 1, "cooldown": "5s"}) as r:
        await failure(r, r.call())
        r.clock.now += 6
        server = r.servers["a"]
        server.faults = [faults.stall, faults.stall, faults.sound]
        async with aclosing(r.handler(r.call())) as chunks:
            await anext(chunks)
        task = asyncio.create_task(ask(r, r.call()))
        await server.arrived(3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not r.health.breaker(Target(backend="a", model="a-model")).is_closed
        assert text(await ask(r, r.call())) == ANSWER
        assert r.health.breaker(Target(backend="a", model="a-model")).is_closed


# In the middle of the answer

DEATHS: dict[str, tuple[faults.Fault, str]] = {
    "cut": (faults.cut, "upstream_cut"),
    "stall": (faults.stall, "upstream_timeout"),
    "malformed": (faults.malformed, "upstream_cut"),
    "unfinished": (faults.unfinished, "upstream_cut"),
    "error-event": (faults.error_event, "upstream_error"),
}


@pytest.mark.parametrize("case", DEATHS)
async def test_another_goes_on_where_it_broke_off(case: str) -> None:
    fault, code = DEATHS[case]
    async with row(FaultServer(fault), FaultServer(continues=True), continues="b") as r, within(1.0):
        call = r.call(params={"max_tokens": 50})
        chunks = await ask(r, call)
        assert text(chunks) == ANSWER
        assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
        assert sum("role" in (chunk.delta or {}) for chunk in chunks) == 1
        asked = r.servers["b"].requests[0].json()
        begun = asked["messages"][-1]
        assert begun["role"] == "assistant"
        said = len(words(begun["content"]))
        assert said > 0
        assert ANSWER.startswith(begun["content"])
        assert asked["continue_final_message"] is True
        assert asked["max_tokens"] == 50 - said
        assert usage(chunks) == Usage(PROMPT_TOKENS, len(words(ANSWER)))
        assert call.candidate is call.candidates[1]
        assert call.receipt.notes["fallback"]["continued"] == 1
        assert outcomes(call) == [code, "ok"]
        first, second = call.upstream_usage
        counted = max(said, -(-len(begun["content"]) // 4))
        assert (first.usage, first.estimated) == (Usage(PROMPT_TOKENS, counted), True)
        assert [one.purpose for one in call.upstream_usage] == ["attempt", "answer"]
        assert (second.usage, second.estimated) == (
            Usage(PROMPT_TOKENS + said, len(words(ANSWER)) - said),
            False,
        )


@pytest.mark.parametrize("case", DEATHS)
async def test_one_that_cannot_go_on_is_asked_afresh_and_spliced(case: str) -> None:
    async with row(FaultServer(DEATHS[case][0]), FaultServer()) as r, within(1.0):
        call = r.call()
        chunks = await ask(r, call)
        assert text(chunks) == ANSWER
        assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
        assert sum("role" in (chunk.delta or {}) for chunk in chunks) == 1
        assert "continue_final_message" not in r.servers["b"].requests[0].json()
        assert usage(chunks) == Usage(PROMPT_TOKENS, len(words(ANSWER)))
        assert call.receipt.notes["fallback"]["attempts"][1]["how"] == "afresh"


async def test_one_that_refuses_a_partial_answer_is_asked_afresh() -> None:
    server = FaultServer(prefill=faults.bad_request(faults.Asked(False, "", 0)))
    async with row(FaultServer(faults.cut), server, continues="b") as r:
        call = r.call()
        assert text(await ask(r, call)) == ANSWER
        assert r.attempts() == [1, 2]
        assert outcomes(call) == ["upstream_cut", "bad", "ok"]


async def test_one_that_says_something_else_is_passed_over() -> None:
    async with row(FaultServer(faults.cut), FaultServer(answer="No, no."), FaultServer()) as r:
        call = r.call()
        assert text(await ask(r, call)) == ANSWER
        assert outcomes(call) == ["upstream_cut", "deviated", "ok"]


@pytest.mark.parametrize("other", ["No, no.", "The quick", ANSWER.replace("quick", "quack")])
async def test_when_all_deviate_the_end_is_an_error(other: str) -> None:
    async with row(FaultServer(faults.stall), FaultServer(answer=other)) as r:
        call = r.call()
        seen = ""
        with pytest.raises(errors.UpstreamTimeout) as caught:
            async with aclosing(r.handler(call)) as chunks:
                async for chunk in chunks:
                    assert chunk.finish_reason is None
                    seen += text([chunk])
        assert caught.value.code == "upstream_cut"
        assert "stalled" in caught.value.message
        assert ANSWER.startswith(seen)
        assert call.candidate is call.candidates[0]
        assert outcomes(call) == ["upstream_timeout", "deviated"]


async def test_one_after_the_other_goes_on() -> None:
    dying = FaultServer(faults.cut, continues=True)
    async with row(FaultServer(faults.cut), dying, FaultServer(continues=True), continues="bc") as r:
        call = r.call()
        chunks = await ask(r, call)
        assert text(chunks) == ANSWER
        assert usage(chunks) == Usage(PROMPT_TOKENS, len(words(ANSWER)))
        assert call.receipt.notes["fallback"]["continued"] == 2
        assert len(call.upstream_usage) == 3


async def test_the_only_one_that_can_go_on_gets_one_more_chance() -> None:
    async with row(FaultServer(faults.cut, faults.sound, continues=True), continues="a") as r:
        assert text(await ask(r, r.call())) == ANSWER
    async with row(FaultServer(faults.cut, continues=True), continues="a") as r:
        error = await failure(r, r.call())
        assert error.code == "upstream_cut"
        assert r.attempts() == [2]


async def test_but_not_after_a_stall_nor_when_it_is_known_to_be_sick() -> None:
    async with row(FaultServer(faults.stall, faults.sound, continues=True), continues="a") as r:
        assert (await failure(r, r.call())).code == "upstream_timeout"
        assert r.attempts() == [1]
    async with row(
        FaultServer(faults.cut, faults.sound, continues=True), continues="a", breaker={"failures": 1}
    ) as r:
        await failure(r, r.call())
        assert r.attempts() == [1]


async def test_without_a_next_the_end_is_the_error_itself() -> None:
    for case, (fault, code) in DEATHS.items():
        async with row(FaultServer(fault)) as r:
            call = r.call()
            error = await failure(r, call)
            assert error.code == code, case
            assert isinstance(error, errors.Upstream)
            [spent] = call.upstream_usage
            assert spent.estimated


async def test_many_choices_cannot_be_gone_on_with() -> None:
    async with row(FaultServer(faults.cut), FaultServer()) as r:
        assert (await failure(r, r.call(n=2))).code == "upstream_cut"
        assert r.attempts() == [1, 0]


async def test_what_was_at_its_end_already_is_not_ended_twice() -> None:
    def no_done(asked: faults.Asked) -> tuple[Any, ...]:
        return (*faults.stream(*asked.events()[:-2], whole=False), 0.02, faults.Action.ABORT)

    async with row(FaultServer(no_done), FaultServer(), continues="b") as r:
        chunks = await ask(r, r.call())
        assert text(chunks) == ANSWER
        assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
        assert usage(chunks) == Usage(PROMPT_TOKENS, len(words(ANSWER)))
    async with row(FaultServer(no_done), FaultServer(answer=ANSWER + " More.")) as r:
        assert (await failure(r, r.call())).code == "upstream_cut"


async def test_one_bad_event_is_no_failure() -> None:
    async with row(FaultServer(faults.one_bad_event), FaultServer()) as r:
        assert text(await ask(r, r.call())) == ANSWER
        assert r.attempts() == [1, 0]


def anthropic(*texts: str) -> faults.Script:
    """A streamed message of Anthropic's."""
    events: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "role": "assistant",
                "content": [],
                "usage": {"input_tokens": 9, "output_tokens": 1},
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
            for text in texts
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": len(texts)},
        },
        {"type": "message_stop"},
    ]
    return faults.stream(*(faults.sse(event) for event in events))


async def test_anthropic_goes_on_from_a_text_without_the_space_at_its_end() -> None:
    async def dying(call: Call) -> Chunks:
        yield Chunk(delta={"role": "assistant", "content": "One"})
        yield Chunk(delta={"content": ",\n "})
        raise errors.UpstreamFailed("gone")

    async with FakeUpstream(anthropic("\n ", "two", " three.")) as server:
        rules = policy(
            backends={
                "a": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"},
                "b": {"kind": "anthropic", "base_url": f"http://127.0.0.1:{server.port}", "continues": True},
            },
            models={name: {"targets": [{"backend": name, "model": "x"}]} for name in "ab"},
        )
        backend = AnthropicBackend("b", base_url=f"http://127.0.0.1:{server.port}", max_tokens=100)
        call = a_call(policy_=rules, model="a")
        call.candidates = tuple(Candidate(name, Target(backend=name, model="x"), Timeouts()) for name in "ab")
        handler = attempts(
            lambda call: (
                backend.stream(call, call.target)
                if call.target and call.target.backend == "b"
                else dying(call)
            ),
            rules,
        )
        async with aclosing(handler(call)) as chunks:
            heard = [chunk async for chunk in chunks]
        assert text(heard) == "One,\n two three."
        assert usage(heard) == Usage(9 - 2, 3 + 2)
        begun = server.requests[0].json()["messages"][-1]
        assert begun == {"role": "assistant", "content": [{"type": "text", "text": "One,"}]}
        await backend.aclose()


# Those who leave


async def test_leaving_during_a_pause_ends_it() -> None:
    async with row(FaultServer(faults.rate_limited_for("0.8"), faults.sound)) as r, within(0.5):
        call = r.call()
        task = asyncio.create_task(ask(r, call))
        await r.servers["a"].arrived()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert outcomes(call) == ["rate_limit_exceeded"]


async def test_leaving_in_the_middle_stops_the_server() -> None:
    async with row(FaultServer(faults.stall), FaultServer()) as r:
        call = r.call()
        async with aclosing(r.handler(call)) as chunks:
            async for chunk in chunks:
                if text([chunk]):
                    break
        async with asyncio.timeout(300):
            await r.servers["a"].requests[0].left.wait()
        assert outcomes(call) == ["client_left"]
        assert call.upstream_usage[0].estimated
        assert r.attempts() == [1, 0]
        assert 'tollgate_attempts_total{backend="a",outcome="client_left"} 1.0' in r.metrics.render().decode()


@STREAMED
@pytest.mark.parametrize("how", ["leaves", "deadline", "total"])
async def test_what_was_sent_is_paid_for_though_nobody_hears_the_answer(how: str, streamed: bool) -> None:
    """One that is not streamed goes on at many providers: it counts as what was held for it if its caller goes."""
    async with row(FaultServer(faults.silence)) as r:
        call = r.call(stream=streamed)
        if how == "deadline":
            call.deadline = time.perf_counter() + 1.0  # a loaded machine sends it before that
            patient = Timeouts.model_validate({"first_token": "60s", "total": "60s"})
            call.candidates = tuple(replace(one, timeouts=patient) for one in call.candidates)
        task = asyncio.create_task(ask(r, call))
        await r.servers["a"].arrived()
        if how == "leaves":
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        [spent] = call.upstream_usage
        own_doing = how != "total" and not streamed
        assert spent.usage == Usage(PROMPT_TOKENS, RESERVED if own_doing else EXPECTED)
        assert (spent.estimated, spent.model) == (True, "a")
        assert spent.purpose == ("answer" if how == "leaves" else "attempt")


async def test_what_never_left_is_free() -> None:
    async with row(FaultServer()) as r:
        await r.servers["a"].stop()
        call = r.call()
        await failure(r, call)
        assert call.upstream_usage == []

        def full(following: Handler) -> Handler:
            async def handle(call: Call) -> Chunks:
                raise errors.Overloaded("full", retry_after=1.0)
                yield

            return handle

        def waits(following: Handler) -> Handler:
            async def handle(call: Call) -> Chunks:
                yield Chunk(comment="position 1")
                await asyncio.sleep(60)

            return handle

        r.following = full
        await failure(r, call)
        r.following = waits
        async with aclosing(r.handler(call)) as chunks:
            assert (await anext(chunks)).comment
        assert call.upstream_usage == []


async def test_an_answer_without_usage_is_counted_by_its_text() -> None:
    """All choices, and whatever a model says: text, thoughts, calls."""
    call_ = {"id": "c1", "type": "function", "function": {"name": "f" * 10, "arguments": "x" * 390}}
    message = {
        "role": "assistant",
        "content": "y" * 400,
        "reasoning_content": "z" * 800,
        "tool_calls": [call_],
    }
    choices = [{"index": i, "message": message, "finish_reason": "stop"} for i in range(3)]

    def told(asked: faults.Asked) -> faults.Script:
        return faults.reply({**faults.completion(""), "choices": choices, "usage": None})

    async with row(FaultServer(told)) as r:
        call = r.call(stream=False, n=3)
        await ask(r, call)
        [spent] = call.upstream_usage
        assert (spent.usage, spent.estimated) == (Usage(PROMPT_TOKENS, 3 * 400), True)


async def test_leaving_while_another_goes_on() -> None:
    async with row(FaultServer(faults.cut), FaultServer(faults.silence), continues="b") as r:
        task = asyncio.create_task(ask(r, r.call()))
        request = await r.servers["b"].arrived()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(300):
            await request.left.wait()


async def test_copies_share_what_they_tell() -> None:
    async with row(FaultServer(faults.broken), FaultServer()) as r:
        seen: list[Call] = []
        targets: list[str] = []

        def spy(following: Handler) -> Handler:
            def handle(call: Call) -> Chunks:
                seen.append(call)
                targets.append(call.target.backend if call.target else "")
                return following(call)

            return handle

        r.following = spy
        call = r.call()
        await ask(r, call)
        assert all(copy.upstream_usage is call.upstream_usage for copy in seen)
        assert seen[0] is call and all(copy is not call for copy in seen[1:]), "no copy where none is needed"
        assert targets == ["a", "a", "b"]
        assert replace(call).receipt is call.receipt


# Whole answers that come as streams


async def test_of_a_whole_answer_that_breaks_off_as_a_stream_nothing_was_shown() -> None:
    def streams_anyway(asked: faults.Asked) -> Script:
        return faults.cut(replace(asked, stream=True))

    async with row(FaultServer(streams_anyway), FaultServer(answer="Another answer altogether.")) as r:
        call = r.call(stream=False)
        # With limits on silence it would be asked for as a stream from the start.
        call.candidates = tuple(replace(one, timeouts=Timeouts()) for one in call.candidates)
        assert text(await ask(r, call)) == "Another answer altogether."
        assert outcomes(call)[-1] == "ok"
        assert call.upstream_usage[0].usage.completion > 0, "what had come of it is paid for"
