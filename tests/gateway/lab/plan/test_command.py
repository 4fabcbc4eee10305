"""``tollgate plan`` as its users have it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.databases.sqlite import SqliteDatabase
from gateway.observe.ended import Ended
from gateway.observe.ledger.ledger import Ledger
from gateway.types import Usage
from tests.fakes import CANDIDATE, a_bill, a_call
from tests.gateway.lab.plan.test_arithmetic import LLAMA2_7B

MODEL = "params=7B,layers=32,kv_heads=8,head_dim=128,vocab=32000,hidden=4096"
TRAFFIC = ("--prompt-tokens", "uniform:200-400", "--output-tokens", "20", "--sample", "100")


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["plan", "--model", MODEL, *arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


def plan_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = plan(capsys, *TRAFFIC, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_the_cheapest_machines_keep_the_targets_and_one_fewer_does_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "plan.html"
    more = ("--chip", "l4,h100", "--tensor-parallel", "1", "--quantization", "bf16,fp8", "--rate", "12")
    found = plan_json(capsys, *more, "--against", "gpt-4o-mini", "--html", str(page))
    costs = [one["usd_per_month"] for one in found["plans"]]
    best = found["plans"][0]
    assert costs == sorted(costs) and len(costs) > 1
    assert best["within_targets"] >= 0.95
    assert best["usd_per_month"] == pytest.approx(
        best["replicas"] * {"l4": 0.47, "h100": 3.35}[best["chip"]] * 730
    )
    assert sum(best["time_by_limit"].values()) == pytest.approx(1)
    (against,) = found["break_even"]
    assert against["share_of_volume"] == pytest.approx(costs[0] / against["usd_per_month"])
    assert any(one["name"] == "l4, bf16" and "itl" in one["reason"] for one in found["unfit"])
    assert {one["what"] for one in found["changes"]} >= {"twice the requests", "targets half as long"}
    html = page.read_text()
    assert html.count("<svg") == 3 and "http-equiv" not in html and "<script" not in html


def test_more_traffic_needs_more_machines(capsys: pytest.CaptureFixture[str]) -> None:
    alone = ("--chip", "l4", "--tensor-parallel", "1", "--quantization", "int4")
    few, many = (plan_json(capsys, *alone, "--rate", rate)["plans"][0] for rate in ("2", "12"))
    assert many["replicas"] > few["replicas"]


def test_own_chips_and_prices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "read: 2026-11-29\nchips: {mine: {memory: 80GB, bandwidth: 3T, flops: {bf16: 900T}, usd_per_hour: 9}}"
    )
    more = (
        "--chips",
        str(own),
        "--chip",
        "mine=1.5",
        "--tensor-parallel",
        "1",
        "--quantization",
        "bf16",
        "--rate",
        "1",
    )
    assert plan_json(capsys, *more)["plans"][0]["usd_per_month"] == pytest.approx(1.5 * 730)


def test_targets_that_nothing_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(capsys, *TRAFFIC, "--rate", "1", "--chip", "l4", "--slo", "itl=1ms")
    assert code == 1
    assert "Nothing keeps the targets" in out and "itl: a token takes" in out and "Looser targets" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "there must be traffic"),
        (("--trace", "nowhere.csv"), "--trace: nowhere.csv: No such file"),
        (("--rate", "1", *TRAFFIC, "--slo", "fast"), "--slo: 'fast' is no bound"),
        (("--rate", "1", *TRAFFIC, "--chip", "h1000"), "--chip h1000: not in the table, which has l4"),
        (("--rate", "1", *TRAFFIC, "--quantization", "int3"), "'int3' is not known; these are: fp32"),
        (("--rate", "1", *TRAFFIC, "--kv-dtype", "int3"), "--kv-dtype: 'int3' is not known"),
        (("--rate", "1", *TRAFFIC, "--tensor-parallel", "two"), "--tensor-parallel two: numbers of chips"),
        (("--rate", "1", *TRAFFIC, "--against", "gpt-99"), "--against gpt-99: the catalogue has no price"),
        (("--rate", "1", *TRAFFIC, "--html", "/nowhere/x.html"), "cannot be written there"),
        (("--rate", "0", *TRAFFIC), "--rate: requests a second, above 0"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, _, err = plan(capsys, *arguments)
    assert code == 2
    assert said in err


def test_requests_longer_than_the_model_takes_are_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA2_7B, "max_position_embeddings": 2048}))
    code = main(
        ["plan", "--model", str(tmp_path), "--rate", "1", "--prompt-tokens", "4000", "--output-tokens", "9"]
    )
    assert code == 2
    assert "the model takes 2,048" in capsys.readouterr().err


def test_the_months_volume_is_the_ledgers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLLGATE_STATE_DIR", str(tmp_path))
    file = tmp_path / "ledger.sqlite"
    ledger = Ledger(SqliteDatabase(file))
    for number in range(20):
        call = a_call(request_id=f"req_{number}")
        call.receipt.created, call.candidate = time.time(), CANDIDATE
        ledger.record(Ended(call, a_bill(Usage(300, 40, cached=100), 5), 200))
    assert ledger.wait_drained(300)
    asyncio.run(ledger.aclose())
    alone = ("--chip", "h100", "--tensor-parallel", "1", "--quantization", "bf16", "--sample", "50", "--json")
    code, out, err = plan(capsys, "--ledger", str(file), "--against", "gpt-4o-mini", *alone)
    assert code == 0, err
    told = json.loads(out)
    # Twenty requests in one day, 730 / 24 days a month.
    month = told["month"]
    assert month["requests"] == pytest.approx(20 * 730 / 24)
    assert month["cached_tokens"] / month["prompt_tokens"] == pytest.approx(1 / 3)
    assert told["traffic"]["prompt_tokens_mean"] == 300 and told["traffic"]["output_tokens_mean"] == 40
    assert told["traffic"]["requests_per_second"] == pytest.approx(3 * 20 / 86_400)
    price = 200 * 0.15 + 100 * 0.075 + 40 * 0.60
    assert told["break_even"][0]["usd_per_month"] == pytest.approx(month["requests"] * price / 1e6)
    code, _, err = plan(capsys, "--ledger", str(file), "--of-model", "nobody's", *alone)
    assert code == 2 and "no requests of the model 'nobody's'" in err
