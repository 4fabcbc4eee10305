"""Whatever comes, in whatever order it ends: no more is spent than the budget has, and no more waits than may."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.databases.opening import open_tables
from gateway.evaluation.asking import Busy, Judge, Unjudged, payer_of
from gateway.evaluation.evaluator import MOST_BYTES, Bench, Evaluator
from gateway.evaluation.table import EVALUATIONS, EvaluationTable
from gateway.evaluation.work import Asked, Side, Work
from gateway.metering.price import NANO
from gateway.observe.accounting import Accounting
from gateway.observe.metrics import Metrics
from gateway.pipeline import SideCalls
from gateway.policy.schema import LedgerSettings, Policy
from gateway.quota.quotas import Quotas
from gateway.recording.kept_answer import KeptAnswer
from gateway.recording.masking import TextMasker
from gateway.sidecar.client import NoSidecar
from gateway.types import Call, ChatRequest, Chunk, Chunks, Handler, Principal, UpstreamUsage, Usage
from tests.examples import examples

CALLER = Principal("one", "acme")
METRICS = Metrics()


def a_policy(**evaluation: Any) -> Policy:
    return Policy.model_validate(
        {
            "version": 1,
            "backends": {"up": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1", "local": True}},
            "models": {name: {"targets": [{"backend": "up", "model": name}]} for name in ("m", "judge")},
            "prices": {"judge": {"input": 1.0, "output": 10.0}},
            "evaluation": {"judge": "judge", **evaluation},
        }
    )


@cache
def masker() -> TextMasker:
    return TextMasker(a_policy(), NoSidecar())


def asked(number: int) -> Asked:
    return Asked(f"req_{number}", CALLER, 1.7e9, "/v1/chat/completions", False, None, masker())


def a_judge(policy: Policy, lengths: list[int], quotas: Quotas) -> Judge:
    """``lengths``: tokens of its replies, as far as it may go; each takes as many turns of the loop."""
    left = iter(lengths)

    async def answered(call: Call) -> Chunks:
        if call.allowance is None:
            raise RuntimeError("it asks under no budget")
        cap = await call.allowance.hold(call)
        length = min(next(left, 1), 1024 if cap is None else cap)
        for _ in range(length % 7):
            await asyncio.sleep(0)
        target = policy.models["judge"].targets[0]
        used = UpstreamUsage(target, Usage(call.expected_prompt, length), purpose=call.purpose, model="judge")
        call.allowance.release(call, used)
        call.upstream_usage.append(used)
        yield Chunk(delta={"content": '{"score": 3}'}, finish_reason="stop", usage=used.usage)

    def following(call: Call) -> Chunks:
        return answered(call)

    if policy.evaluation is None:
        raise RuntimeError("the policy has no judge")
    handler: Handler = SideCalls(quotas, Accounting(METRICS, None)).stage(following)
    return Judge(policy.evaluation, policy, handler)


@settings(max_examples=examples(50), deadline=None)
@given(
    st.floats(0.0, 0.05),
    st.lists(st.integers(1, 1024), min_size=1, max_size=25),
    st.lists(st.integers(1, 400), min_size=1, max_size=25),
)
def test_no_more_is_spent_than_the_budget_has(dollars: float, lengths: list[int], words: list[int]) -> None:
    policy = a_policy(budget={"usd_per_day": dollars})

    async def spent() -> tuple[float, list[object]]:
        quotas = Quotas("memory")
        judge = a_judge(policy, lengths, quotas)
        said = await asyncio.gather(
            *(
                judge.ask(asked(number), [{"role": "user", "content": "word " * count}])
                for number, count in enumerate(words)
            ),
            return_exceptions=True,
        )
        limits = await quotas.used(policy, payer_of(judge.config))
        await quotas.aclose()
        return limits[0][1] / NANO, list(said)

    used, said = asyncio.run(spent())
    assert used <= dollars + 1e-9
    refused = [one for one in said if isinstance(one, Unjudged | Busy)]
    assert {one.outcome for one in refused if isinstance(one, Unjudged)} <= {"over_budget"}
    assert all(isinstance(one, str | Unjudged | Busy) for one in said)
    if dollars >= 0.02 * len(words):
        assert not refused


LONG, SHORT = "x" * 2_000_000, "x"


def work(number: int, text: str) -> Work:
    request = ChatRequest("m", messages=({"role": "user", "content": text},))
    return Work(asked(number), Side("m", "up/m", KeptAnswer(request, "m"), 1.0, 0))


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(1, 8), st.lists(st.sampled_from([SHORT, LONG]), max_size=12))
def test_no_more_waits_than_may_and_what_comes_then_is_counted(queue: int, texts: list[str]) -> None:
    policy = a_policy(queue=queue)

    async def run() -> tuple[int, float]:
        before = METRICS.evaluations.labels("m", "dropped").value
        table = EvaluationTable(open_tables(EVALUATIONS, LedgerSettings(), Path("nowhere")))
        evaluator = Evaluator(METRICS)
        evaluator.update(Bench(a_judge(policy, [], Quotas("memory")), table, None, nullcontext))
        await evaluator.aclose()  # nobody takes anything
        for number, text in enumerate(texts):
            evaluator.add(work(number, text))
        return evaluator.waiting, METRICS.evaluations.labels("m", "dropped").value - before

    waiting, dropped = asyncio.run(run())
    assert waiting + dropped == len(texts)
    assert waiting <= queue
    assert bool(dropped) == (len(texts) > queue or texts.count(LONG) > MOST_BYTES // (4 * len(LONG)))
