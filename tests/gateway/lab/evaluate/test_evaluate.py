"""``tollgate evaluate`` beside a running gateway whose models answer by scripts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.lab.evaluate.evaluation import Plan, evaluate
from gateway.lab.evaluate.gateway_batches import open_gateway
from gateway.lab.evaluate.reader import read_set
from gateway.lab.evaluate.summary import Bounds, summarised
from tests.gateway.batches.submitting import client
from tests.serving import KEY, Gateway, a_policy, serving

pytestmark = pytest.mark.anyio


def policy() -> dict[str, Any]:
    """``good`` is right but for nine, ``bad`` is wrong in each tenth case; ``judge`` likes what it sees second."""

    def fake(*script: dict[str, Any]) -> dict[str, Any]:
        return {"kind": "fake", "script": list(script)}

    base = a_policy("http://127.0.0.1:1/v1")
    backends = {
        "good": fake({"match": "fails", "reply": "no", "status": 400}, {"reply": "it is 42"}),
        "bad": fake({"match": "0?", "reply": "it is 41"}, {"reply": "it is 42"}),
        "judge": fake({"match": '"better"', "reply": '{"better": "second"}'}, {"reply": '{"score": 4}'}),
        "vectors": fake({"reply": "-"}),
    }
    models = {name: {"targets": [{"backend": name, "model": name}]} for name in backends}
    prices = {name: {"input": 1.0, "output": 1.0} for name in backends}
    return {**base, "backends": {**base["backends"], **backends}, "models": models, "prices": prices}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with serving(tmp_path / "policies", policy()) as running:
        yield running


def a_set(tmp_path: Path, *cases: dict[str, Any]) -> Path:
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(map(json.dumps, cases)))
    return path


def numbered(count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": f"case {place}?", "task": f"t{place % 2}", "checks": [{"number": 42}]}
        for place in range(count)
    ]


async def command(gateway: Gateway, path: Path, *more: str) -> int:
    """In a thread: the gateway runs in this one."""
    return await asyncio.to_thread(main, ["evaluate", str(path), "--url", gateway.url, *more])


async def test_a_worse_model_is_a_regression(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOLLGATE_API_KEY", KEY)
    path = a_set(tmp_path, *numbered(100))
    assert await command(gateway, path, "--models", "good,bad", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    good, bad = told["models"]
    assert (good["passed"], bad["passed"], bad["judged"], bad["errors"]) == (100, 90, 100, 0)
    assert bad["tasks"] == {"t0": {"judged": 50, "passed": 40}, "t1": {"judged": 50, "passed": 50}}
    assert bad["cost_usd"] == pytest.approx(
        100 * 5 * 1e-6 * 0.5
    )  # two words asked, three answered, at half the price
    assert bad["seconds"]["p50"] > 0
    (comparison,) = told["comparisons"]
    assert (comparison["lost"], comparison["gained"], comparison["regression"]) == (10, 0, True)
    low, high = comparison["difference_interval"]
    assert low < -0.1 < high < 0
    # The same run again asks nobody, and a budget forgives.
    async with client(gateway) as openai:
        before = [batch.id async for batch in openai.batches.list()]
        answers = tmp_path / "answers.jsonl"
        more = ("--budget", "10%", "--answers", str(answers))
        assert await command(gateway, path, "--models", "good,bad", *more) == 0
        assert [batch.id async for batch in openai.batches.list()] == before
    text = capsys.readouterr().out
    assert "bad beside good: -10.0 points" in text
    assert "no regression beyond 10.0 points" in text
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [line["why"] for line in lines if not line["passed"]] == ["41"] * 10
    assert await command(gateway, path, "--models", "good,bad") == 1
    assert "REGRESSION: worse by more than 0.0 points, with 95% confidence" in capsys.readouterr().out


async def test_one_that_is_started_again_goes_on(gateway: Gateway, tmp_path: Path) -> None:
    path = a_set(tmp_path, *numbered(40))
    plan = Plan(read_set(path), ["good", "bad"])
    name = plan.name(path.read_bytes())
    async with open_gateway(gateway.url, KEY, poll=0.02) as batches, client(gateway) as openai:
        waiting = asyncio.create_task(evaluate(plan, name, batches, lambda *_: None))
        while not [batch async for batch in openai.batches.list()]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        evaluation = await evaluate(plan, name, batches, lambda *_: None)
        assert len([batch async for batch in openai.batches.list()]) == 1
    told = summarised(evaluation, Bounds())
    assert [model["passed"] for model in told["models"]] == [40, 36]


async def test_an_answer_that_failed_is_wrong_and_named(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOLLGATE_API_KEY", KEY)
    path = a_set(tmp_path, {"prompt": "fails", "checks": [{"number": 42}]})
    assert await command(gateway, path, "--models", "good", "--json") == 0
    (good,) = json.loads(capsys.readouterr().out)["models"]
    assert (good["passed"], good["errors"]) == (0, 1)


async def test_a_judge_grades_and_compares_in_both_orders(gateway: Gateway, tmp_path: Path) -> None:
    path = a_set(tmp_path, *({**case, "checks": [{"judge": "Is it so?"}]} for case in numbered(3)))
    plan = Plan(read_set(path), ["good", "bad"], judge="judge", pairwise=True)
    async with open_gateway(gateway.url, KEY, poll=0.02) as batches:
        told = summarised(await evaluate(plan, "name", batches, lambda *_: None), Bounds())
    assert [(model["passed"], model["score"]) for model in told["models"]] == [(3, 0.75), (3, 0.75)]
    # It prefers whatever comes second: of neither it says so in both orders.
    preferred = told["comparisons"][0]["preferred"]
    assert (preferred["wins"], preferred["ties"], preferred["losses"]) == (0, 3, 0)
    assert told["judge_cost_usd"] > 0


async def test_similar_texts_are_near(gateway: Gateway, tmp_path: Path) -> None:
    checks = [{"similar": "it is 42", "at_least": 0.99}], [{"similar": "something else", "at_least": 0.99}]
    path = a_set(tmp_path, *({"prompt": "?", "checks": list(check)} for check in checks))
    plan = Plan(read_set(path), ["good"], embedder="vectors")
    async with open_gateway(gateway.url, KEY, poll=0.02) as batches:
        results = (await evaluate(plan, "name", batches, lambda *_: None)).results["good"]
    assert [result.verdict is not None and result.verdict.passed for result in results] == [True, False]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--models", "good,good"], "each once"),
        (["--models", "good", "--budget", "much"], "--budget: 'much' is no share"),
        (["--models", "good", "--confidence", "10%"], "from 50%"),
        (["--models", "good", "--judge", "good"], "would grade itself"),
        (["--models", "good", "--judge", "judge", "--judge-params", "{"], "no JSON"),
        (["--models", "good", "--pairwise"], "the set has none"),
        (["--models", "good", "--key-env", "NOBODY"], "environment variable NOBODY"),
        (["--models", "good", "--url", "gateway"], "write it as http"),
        (["--models", "nobody"], "line 1: The model 'nobody' does not exist"),
    ],
)
async def test_what_cannot_be_done_is_told(
    gateway: Gateway,
    tmp_path: Path,
    more: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TOLLGATE_API_KEY", KEY)
    monkeypatch.delenv("NOBODY", raising=False)
    path = a_set(tmp_path, *numbered(1))
    assert await command(gateway, path, *more) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["judge", "embedder"])
def test_checks_that_need_a_model_say_so(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check = {"judge": "x"} if option == "judge" else {"similar": "x"}
    path = a_set(tmp_path, {"prompt": "?", "checks": [check]})
    assert main(["evaluate", str(path), "--models", "good"]) == 2
    assert f"need --{option} MODEL" in capsys.readouterr().err
