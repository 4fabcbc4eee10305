"""Every way in which a request can end, and what is settled, noted and entered in the ledger for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway import errors
from gateway.metering.bill import Bill
from gateway.observe.ended import Ended
from gateway.policy.schema import Budget, QuotaSettings, Target, Timeouts
from gateway.quota.limits import Amounts
from gateway.quota.quotas import Quotas
from gateway.stages.record import Observers, record
from gateway.types import Call, Candidate, Chunk, Chunks, Handler, Principal, UpstreamUsage, Usage
from tests.fakes import TARGET, a_call, policy

pytestmark = pytest.mark.anyio

PRICES = {"upstream-model": {"input": 1.0, "output": 2.0}, "dear": {"input": 10.0, "output": 20.0}}
LIMITS: dict[str, Any] = {
    "quotas": QuotaSettings(
        requests_per_minute=100, tokens_per_minute=10_000, tokens_per_day=100_000, concurrent_requests=1
    ),
    "budget": Budget(usd_per_day=1.0),
}


class Ledger:
    def __init__(self) -> None:
        self.entries: list[tuple[int, int, int, bool]] = []
        self.errors: list[str | None] = []

    def record(self, call: Call, ended: Ended) -> None:
        bill = ended.bill
        self.entries.append((bill.tokens, bill.nanodollars, ended.status, bill.estimated))
        self.errors.append(ended.error)

    def record_for_house(self, call: Call, bill: Bill) -> None:
        raise AssertionError("none of these is a batch's")


class Fixture:
    """A stage over a script, and what its counters hold afterwards."""

    def __init__(self) -> None:
        self.quotas = Quotas("memory")
        self.ledger = Ledger()

    def call(self, request_id: str = "a", **more: Any) -> Call:
        made = a_call(policy_=policy(prices=PRICES), principal=Principal("k", "acme", **LIMITS), **more)
        made.request_id = request_id
        return made

    def run(self, call: Call, *steps: Chunk | BaseException | UpstreamUsage | None) -> Chunks:
        return record(Observers(self.quotas, self.ledger))(answers(*steps))(call)

    async def counts(self) -> dict[str, int]:
        """What a request that takes nothing finds."""
        limits = self.quotas._limits.limits(policy(), Principal("k", "acme", **LIMITS))
        decision = await self.quotas._counters.reserve("probe", limits, Amounts(0, 0, 0))
        return {
            f"{limit.quantity}/{limit.window}": used
            for limit, used in zip(limits.each, decision.used, strict=True)
        }

    async def check(
        self,
        call: Call,
        *,
        tokens: int,
        nanodollars: int,
        status: int,
        estimated: bool,
        error: str | None = None,
    ) -> None:
        assert await self.counts() == {
            "requests/minute": 1,
            "tokens/minute": tokens,
            "tokens/day": tokens,
            "concurrent/now": 0,
            "dollars/day": nanodollars,
        }
        assert self.ledger.entries == [(tokens, nanodollars, status, estimated)]
        note = call.receipt.notes["quota"]
        assert call.estimate is not None
        assert note["reserved_tokens"] == call.estimate.prompt + call.estimate.reserved
        assert note["used_tokens"] == tokens
        assert note["cost_usd"] == nanodollars / 1e9
        assert note["source"] == ("estimated" if estimated else "backend")


@pytest.fixture
def stage() -> Fixture:
    return Fixture()


def answers(*steps: Chunk | BaseException | UpstreamUsage | None) -> Handler:
    """A handler that yields chunks, raises errors, notes what attempts used, and hangs at None, as listed."""

    async def handle(call: Call) -> Chunks:
        call.candidate = Candidate("m", TARGET, Timeouts())
        for step in steps:
            if isinstance(step, Chunk):
                yield step
            elif isinstance(step, BaseException):
                raise step
            elif step is None:
                await asyncio.sleep(60)
            else:
                call.upstream_usage.append(step)

    return handle


def word(text: str = "word", usage: Usage | None = None) -> Chunk:
    return Chunk(delta={"content": text}, usage=usage)


async def read(chunks: Chunks) -> list[Chunk]:
    return [chunk async for chunk in chunks]


async def test_success(stage: Fixture) -> None:
    call = stage.call()
    seen = await read(stage.run(call, word(), word(), UpstreamUsage(TARGET, Usage(7, 2), model="m")))
    assert len(seen) == 2
    await stage.check(call, tokens=9, nanodollars=7000 + 4000, status=200, estimated=False)
    assert call.reply_headers["x-ratelimit-remaining-requests"] == "99"
    assert call.receipt.notes["quota"]["spent"] == [
        {
            "purpose": "answer",
            "model": "m",
            "backend": "up",
            "target": "upstream-model",
            "prompt_tokens": 7,
            "completion_tokens": 2,
            "cost_usd": 0.000011,
            "estimated": False,
        }
    ]


async def test_success_teaches_the_estimator(stage: Fixture) -> None:
    await read(stage.run(stage.call(), word(), UpstreamUsage(TARGET, Usage(7, 77))))
    later = stage.call("b")
    await read(stage.run(later, word(), UpstreamUsage(TARGET, Usage(7, 77))))
    assert later.estimate is not None
    assert later.estimate.expected == 77


async def test_nothing_is_learned_from_estimates(stage: Fixture) -> None:
    await read(stage.run(stage.call(), word(), UpstreamUsage(TARGET, Usage(7, 77), estimated=True)))
    assert not stage.quotas.estimator._known


@pytest.mark.parametrize(
    "error", [errors.UpstreamUnavailable("no"), errors.Overloaded("full"), errors.BadRequest("bad")]
)
async def test_what_was_never_sent_costs_nothing(stage: Fixture, error: errors.GatewayError) -> None:
    call = stage.call()
    with pytest.raises(type(error)):
        await read(stage.run(call, Chunk(comment="position 3"), error))
    await stage.check(call, tokens=0, nanodollars=0, status=error.status, estimated=False)
    assert "spent" not in call.receipt.notes["quota"]


async def test_an_error_after_attempts_that_were_paid_for(stage: Fixture) -> None:
    call = stage.call()
    with pytest.raises(errors.UpstreamFailed):
        await read(stage.run(call, UpstreamUsage(TARGET, Usage(5, 5)), errors.UpstreamFailed("no")))
    await stage.check(call, tokens=10, nanodollars=15_000, status=502, estimated=False)


async def test_a_bug_after_the_first_chunk(stage: Fixture) -> None:
    call = stage.call()
    with pytest.raises(ZeroDivisionError):
        await read(stage.run(call, word(), UpstreamUsage(TARGET, Usage(7, 1)), ZeroDivisionError()))
    await stage.check(call, tokens=8, nanodollars=9_000, status=500, estimated=False)


async def test_the_client_leaves(stage: Fixture) -> None:
    call = stage.call()
    task = asyncio.create_task(
        read(stage.run(call, UpstreamUsage(TARGET, Usage(9, 4), estimated=True), None))
    )
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await stage.check(call, tokens=13, nanodollars=17_000, status=499, estimated=True)


async def test_the_client_closes_the_stream(stage: Fixture) -> None:
    call = stage.call()
    chunks = stage.run(call, UpstreamUsage(TARGET, Usage(9, 4), estimated=True), word(), word())
    await anext(chunks)
    await chunks.aclose()
    await stage.check(call, tokens=13, nanodollars=17_000, status=499, estimated=True)


async def test_a_discarded_answer_counts_against_every_limit(stage: Fixture) -> None:
    """A cascade's steps, attempts that were broken off: the tokens of all of them."""
    call = stage.call()
    dear = Target(backend="up", model="dear")
    cut = UpstreamUsage(TARGET, Usage(7, 4), estimated=True, purpose="step")
    await read(stage.run(call, word(), cut, UpstreamUsage(dear, Usage(8, 2)), word(usage=Usage(7, 6))))
    cost = 7000 + 8000 + 80_000 + 40_000
    await stage.check(call, tokens=21, nanodollars=cost, status=200, estimated=True)


async def test_an_answer_from_a_cache_costs_nothing(stage: Fixture) -> None:
    call = stage.call()

    async def cached(call: Call) -> Chunks:
        yield word(usage=Usage(7, 9))

    await read(record(Observers(stage.quotas, stage.ledger))(cached)(call))
    await stage.check(call, tokens=0, nanodollars=0, status=200, estimated=False)


async def test_a_model_without_a_price_is_said_to_have_none(stage: Fixture) -> None:
    call = stage.call()
    await read(
        stage.run(
            call, UpstreamUsage(Target(backend="up", model="new"), Usage(7, 2)), word(usage=Usage(7, 2))
        )
    )
    assert call.receipt.notes["quota"]["unpriced"] == ["up/new"]
    assert call.receipt.notes["quota"]["cost_usd"] == 0


async def test_refused_requests_go_no_further(stage: Fixture) -> None:
    held = stage.run(stage.call("a"), word(), word())
    await anext(held)
    with pytest.raises(errors.RateLimited, match="1 answers at once"):
        await read(stage.run(stage.call("b"), AssertionError("never reached")))
    assert stage.ledger.entries == [(0, 0, 429, False)]
    assert stage.ledger.errors == ["rate_limit_exceeded"]
    await held.aclose()
    await read(stage.run(stage.call("c"), word()))


async def test_without_limits_it_is_counted_all_the_same() -> None:
    ledger, call = Ledger(), a_call(policy_=policy(prices=PRICES))
    await read(
        record(Observers(Quotas("memory"), ledger))(answers(word(), UpstreamUsage(TARGET, Usage(7, 2))))(call)
    )
    assert ledger.entries == [(9, 11_000, 200, False)]
    assert call.receipt.notes["quota"]["cost_usd"] == 0.000011
    assert call.reply_headers == {}


async def test_a_ledger_that_fails_spoils_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def record(self, *_: object) -> None:
            raise OSError("disk full")

    await read(record(Observers(Quotas("memory"), Broken()))(answers(word(usage=Usage(7, 2))))(a_call()))
    assert "could not be entered in the ledger" in caplog.text
