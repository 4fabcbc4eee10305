"""A judge model, over real sockets and the stages that lead to a backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.pools import Pools
from gateway.backends.dispatch import dispatch
from gateway.backends.openai import OpenAIBackend
from gateway.errors import Internal
from gateway.findings import Finding
from gateway.guards.scanners.judge import ModelJudge
from gateway.guards.scanners.judge_formats import FORMATS
from gateway.guards.scanners.scanner import Unscanned, Verdict
from gateway.observe.accounting import Accounting
from gateway.observe.metrics import Metrics
from gateway.pipeline import SideCalls
from gateway.policy.schema import Policy, Tenant
from gateway.policy.schema.judges import Judge
from gateway.quota.quotas import Quotas
from gateway.types import Call, Chunk, Chunks, Principal
from tests.fakes import Action, FakeUpstream, a_call, completion, policy, reply, within
from tests.gateway.upstream_loops import upstream_loop

pytestmark = pytest.mark.anyio


@dataclass
class Bench:
    judge: ModelJudge
    upstream: FakeUpstream
    metrics: Metrics
    policy: Policy

    def says(self, *answers: str) -> None:
        self.upstream.scripts = [reply(completion(answer)) for answer in answers]


@pytest.fixture
async def bench(upstream: FakeUpstream) -> AsyncIterator[Bench]:
    rules = policy(
        models={
            "guard": {
                "targets": [{"backend": "up", "model": "llama-guard3"}],
                "aliases": ["watch"],
                "retry": {"attempts": 1},
            }
        },
        prices={"llama-guard3": {"input": 1.0, "output": 10.0}},
    )
    backend = OpenAIBackend("up", base_url=upstream.base_url, probe_url=upstream.base_url)
    pools, metrics = Pools(), Metrics(tenants=True)
    pools.update(rules)
    handler = upstream_loop(dispatch({"up": backend}), rules, pools=pools, metrics=metrics)
    accounting = Accounting(metrics, None)
    yield Bench(
        ModelJudge(Judge(model="watch"), rules, SideCalls(Quotas("memory"), accounting).stage(handler)),
        upstream,
        metrics,
        rules,
    )
    await backend.aclose()


async def test_safe(bench: Bench) -> None:
    bench.says("\n\nsafe")
    assert await bench.judge.judge(["Bake me a cake"], "user") == [Verdict((), 0.0, "judge")]
    assert bench.upstream.requests[0].json() == {
        "model": "llama-guard3",
        "messages": [{"role": "user", "content": "Bake me a cake"}],
        "temperature": 0,
        "max_tokens": 64,
        "stream": False,
    }


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ("unsafe\nS1", "violent_crimes"),
        ("\n\nunsafe\nS10,S1\n", "hate"),
        ("unsafe\ns11, S12", "self_harm"),
        ("unsafe\nS77", "S77"),
        ("unsafe", "unsafe"),
    ],
)
async def test_unsafe(bench: Bench, said: str, label: str) -> None:
    bench.says(said)
    assert await bench.judge.judge(["some words"], "user") == [
        Verdict((Finding(label, 0, len("some words"), 1.0),), 1.0, "judge")
    ]


@pytest.mark.parametrize(
    "said", ["", "I cannot judge this.", "safe\nS1", "unsafe because", "unsafely", "Safe!"]
)
async def test_anything_else_is_no_judgement(bench: Bench, said: str) -> None:
    bench.says(said)
    with pytest.raises(Unscanned) as caught:
        await bench.judge.judge(["a secret thing"], "user")
    assert "secret" not in str(caught.value)


@given(st.text())
def test_only_the_two_words_are_understood(said: str) -> None:
    async def handler(call: Call) -> Chunks:
        yield Chunk(delta={"content": said}, finish_reason="stop")

    async def ask() -> Verdict:
        return (await ModelJudge(Judge(model="m"), policy(), handler).judge(["x"], "user"))[0]

    try:
        verdict = asyncio.run(ask())
    except Unscanned:
        assert said.strip().lower() not in ("safe", "unsafe")
    else:
        assert said.strip().lower().startswith("unsafe" if verdict.findings else "safe")


async def test_a_models_own_words_are_judged_as_such(bench: Bench) -> None:
    for origin in ("answer", "assistant"):
        bench.says("safe")
        await bench.judge.judge(["Here is a cake"], origin)
        assert bench.upstream.requests[-1].json()["messages"] == [
            {"role": "user", "content": ""},
            {"role": "assistant", "content": "Here is a cake"},
        ]


async def test_texts_are_judged_side_by_side_and_answered_in_order(bench: Bench) -> None:
    whole = reply(completion("safe"))
    bench.upstream.scripts = [(0.2, *reply(completion("unsafe\nS2"))), (0.2, *whole), (0.2, *whole)]
    async with within(0.5):
        verdicts = await bench.judge.judge(["one", "two", "three"], "tool")
    asked = [request.json()["messages"][0]["content"] for request in bench.upstream.requests]
    # The server takes its script in the order in which the texts arrive.
    assert [bool(verdict.findings) for verdict in verdicts] == [
        text == asked[0] for text in ("one", "two", "three")
    ]


async def test_no_more_than_a_few_at_once(bench: Bench) -> None:
    most = under_way = 0

    async def handler(call: Call) -> Chunks:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        yield Chunk(delta={"content": "safe"}, finish_reason="stop")

    judge = ModelJudge(Judge(model="guard"), bench.policy, handler, concurrency=3)
    assert len(await judge.judge(["x"] * 20, "user")) == 20
    assert most == 3


async def test_one_failure_is_everyones_and_leaves_nothing_under_way(bench: Bench) -> None:
    bench.upstream.scripts = [reply({"error": {"message": "no: a secret thing"}}, status=500), (Action.HANG,)]
    async with within(2):
        with pytest.raises(Unscanned) as caught:
            await bench.judge.judge(["a secret thing", "another"], "user")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    hung = await bench.upstream.arrived(2)
    await asyncio.wait_for(hung.left.wait(), 300)


async def test_a_caller_that_gives_up_leaves_nothing_under_way(bench: Bench) -> None:
    bench.upstream.scripts = [(Action.HANG,)]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await bench.judge.judge(["one", "two"], "user")
    for number in (1, 2):
        hung = await bench.upstream.arrived(number)
        await asyncio.wait_for(hung.left.wait(), 300)


async def test_a_bug_is_not_taken_for_a_judgement(bench: Bench) -> None:
    async def handler(call: Call) -> Chunks:
        raise Internal("broken")
        yield

    with pytest.raises(Unscanned, match="internal_error"):
        await ModelJudge(Judge(model="guard"), bench.policy, handler).judge(["x"], "user")


async def test_its_cost_is_on_nobodys_bill_but_told(bench: Bench) -> None:
    bench.says("safe")
    await bench.judge.judge(["x"], "user")
    # 7 tokens at 1 $ and 3 at 10 $ a million
    line = b'tollgate_cost_dollars_total{model="guard",purpose="judge",tenant="tollgate"} 3.7e-05'
    assert line in bench.metrics.render().replace(b"3.7000000000000005e-05", b"3.7e-05")


async def test_texts_go_where_their_request_may_go(bench: Bench) -> None:
    calls: list[Call] = []

    async def handler(call: Call) -> Chunks:
        calls.append(call)
        yield Chunk(delta={"content": "safe"}, finish_reason="stop")

    rules = bench.policy.model_copy(update={"tenants": {"clinic": Tenant(local_only=True)}})
    anyones, kept, clinics = (
        a_call(policy_=rules, principal=Principal("k", of)) for of in ("a", "b", "clinic")
    )
    kept.local_only = True
    for guard_keeps, asker in (
        (False, None),
        (False, anyones),
        (False, kept),
        (False, clinics),
        (True, anyones),
    ):
        judge = ModelJudge(Judge(model="guard"), rules, handler, local_only=guard_keeps)
        await judge.judge(["x", "y"], "user", asker)
    assert [call.local_only for call in calls[::2]] == [False, False, True, True, True]
    assert len({call.request_id for call in calls}) == len(calls)


YES = '{"harmful": true, "categories": ["violent_crimes"]}'
NO = '{"harmful": false, "categories": []}'


@pytest.mark.parametrize(
    ("said", "label"),
    [
        (YES, "violent_crimes"),
        (f"```json\n{YES}\n```", "violent_crimes"),
        (f"<think>Is it {NO}? No.</think>\nHere you are: {YES}", "violent_crimes"),
        (f"{NO}\n{YES}", "violent_crimes"),
        ('{"categories": ["Violent Crimes"], "harmful": "yes"}', "violent_crimes"),
        ('{"harmful": true, "categories": "S9"}', "indiscriminate_weapons"),
        ('{"harmful": true, "categories": ["made-up", 7, null]}', "unsafe"),
        ('{"harmful": true}', "unsafe"),
        (NO, None),
        ('{"harmful": false, "categories": ["hate"]}', None),
        ('{"note": {"a": 1}} {"harmful": "No"}', None),
    ],
)
async def test_any_model_can_judge(bench: Bench, said: str, label: str | None) -> None:
    bench.says(said)
    judge = ModelJudge(Judge(model="guard", format="json"), bench.policy, bench.judge._handler)
    (verdict,) = await judge.judge(["some words"], "tool")
    assert [finding.label for finding in verdict.findings] == ([label] if label else [])
    system, asked = bench.upstream.requests[0].json()["messages"]
    assert "- violent_crimes: " in system["content"] and "some words" not in system["content"]
    assert "\nsome words\n-----" in asked["content"] and "a document" in asked["content"]


@pytest.mark.parametrize(
    "said",
    ["", "I cannot help with that.", "harmful", '{"harmful": 1}', '{"harmful": true', "{" * 5000, "[true]"],
)
async def test_what_is_no_verdict_acquits_nobody(bench: Bench, said: str) -> None:
    bench.says(said)
    judge = ModelJudge(Judge(model="guard", format="json"), bench.policy, bench.judge._handler)
    with pytest.raises(Unscanned):
        await judge.judge(["some words"], "user")


@given(st.text())
def test_no_answer_breaks_the_reader(said: str) -> None:
    FORMATS["json"].read(said + '{"harmful": "' + said)


@pytest.mark.parametrize(
    ("said", "label", "action"),
    [
        ("unsafe\nS6", None, None),
        ("unsafe\nS5", "defamation", "flag"),
        ("unsafe\nS10", "hate", None),
        ("unsafe\nS9", "indiscriminate_weapons", "block"),
        ("unsafe\nS6,S5,S10,S9", "indiscriminate_weapons", "block"),
        ("unsafe\nS6,S5,S10", "hate", None),
        ("unsafe\nS6,S5", "defamation", "flag"),
        ("unsafe\nS77", "S77", None),
    ],
)
async def test_each_category_has_its_action_and_the_strictest_counts(
    bench: Bench, said: str, label: str | None, action: str | None
) -> None:
    bench.says(said)
    config = Judge(
        model="guard",
        categories={"specialized_advice": "ignore", "defamation": "flag", "indiscriminate_weapons": "block"},
    )
    (verdict,) = await ModelJudge(config, bench.policy, bench.judge._handler).judge(["x"], "user")
    found = [(one.label, one.remedy.action if one.remedy else None) for one in verdict.findings]
    assert found == ([(label, action)] if label else [])


async def test_categories_that_are_not_named_have_one_action(bench: Bench) -> None:
    bench.says("unsafe\nS6", "unsafe\nS9")
    config = Judge(model="guard", categories={"indiscriminate_weapons": "block"}, otherwise="ignore")
    judge = ModelJudge(config, bench.policy, bench.judge._handler)
    assert not (await judge.judge(["x"], "user"))[0].findings
    assert (await judge.judge(["y"], "user"))[0].findings


async def test_a_verdict_is_remembered_for_a_while_for_its_tenant_alone(bench: Bench) -> None:
    now = 0.0
    bench.says("unsafe\nS1")
    config = Judge(model="guard", remember="1m")
    judge = ModelJudge(config, bench.policy, bench.judge._handler, clock=lambda: now)
    one, other = (a_call(policy_=bench.policy, principal=Principal("k", of)) for of in ("a", "b"))
    for asker, count in ((one, 1), (one, 1), (other, 2), (one, 2)):
        (verdict,) = await judge.judge(["x"], "user", asker)
        assert verdict.findings[0].label == "violent_crimes"
        assert len(bench.upstream.requests) == count
    assert one.receipt.notes["judge"] == {
        "model": "guard",
        "paid_by": "house",
        "asked": 1,
        "remembered": 2,
        "cost_usd": pytest.approx(3.7e-05),
        "found": {"violent_crimes": 3},
    }
    now = 60.0
    await judge.judge(["x"], "user", one)
    assert len(bench.upstream.requests) == 3
    await judge.judge(["x"], "tool", one)
    assert len(bench.upstream.requests) == 4


async def test_it_is_asked_no_more_often_than_it_may_be(bench: Bench) -> None:
    now = 0.0
    bench.says("safe")
    config = Judge(model="guard", max_per_request=2, per_minute=3, remember="0s")
    judge = ModelJudge(config, bench.policy, bench.judge._handler, clock=lambda: now)
    first, second = a_call(policy_=bench.policy), a_call(policy_=bench.policy)
    await judge.judge(["a", "b"], "user", first)
    with pytest.raises(Unscanned, match="this request"):
        await judge.judge(["c"], "user", first)
    await judge.judge(["d"], "user", second)
    with pytest.raises(Unscanned, match="minute"):
        await judge.judge(["e"], "user", second)
    now = 60.0
    await judge.judge(["e"], "user", second)
    assert len(bench.upstream.requests) == 4
