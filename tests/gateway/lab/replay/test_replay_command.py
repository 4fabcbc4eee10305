"""``tollgate replay``: what it reports of recorded traffic, under one policy and two, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.recording.recorded_request import RecordedRequest

POLICY = """\
version: 1
backends:
  own: {kind: openai, base_url: http://one/v1, api_key: "${NOBODY_SETS_IT}", max_concurrency: 1}
  paid: {kind: openai, base_url: http://two/v1, api_key: "${NOBODY_SETS_IT}"}
models:
  chat:
    targets: [{backend: own, model: m}]
    fallbacks: [big]
    retry: {attempts: 1}
  big: {targets: [{backend: paid, model: big}]}
prices:
  own/m: {input: 0.0, output: 0.0}
  paid/big: {input: 10.0, output: 20.0}
tiers:
  gold: {priority: 1, max_wait: 30s}
tenants:
  acme: {tier: gold}
  hobby: {quotas: {requests_per_minute: 2}}
guards:
  banned: {kind: topics, words: [never], action: block}
caches:
  exact: {ttl: 1h}
"""
TIMES: Mapping[str, Any] = {"ttft": 0.2, "duration": 1.2, "stream": True, "backend": "own", "target": "m"}
ASKED: Mapping[str, Any] = {"model": "chat", "prompt_tokens": 100, "completion_tokens": 101, **TIMES}
AT = 1_764_590_400.0
REQUESTS: tuple[Mapping[str, Any], ...] = (
    {"request_id": "plain", "at": AT, "tenant": "acme"},
    {"request_id": "waits", "at": AT + 0.5, "tenant": "acme", "prompt_key": "same"},
    {"request_id": "again", "at": AT + 5, "tenant": "acme", "prompt_key": "same"},
    {"request_id": "blocked", "at": AT + 6, "tenant": "acme", "findings": [["banned", "block"]]},
    {"request_id": "first", "at": AT + 10, "tenant": "hobby"},
    {"request_id": "second", "at": AT + 12, "tenant": "hobby"},
    {"request_id": "third", "at": AT + 14, "tenant": "hobby"},
    {"request_id": "left", "at": AT + 20, "tenant": "acme", "outcome": "cancelled", "duration": 0.7},
    {"request_id": "fails", "at": AT + 30, "tenant": "acme", "outcome": "failed", "status": 502,
     "code": "upstream_unavailable", "ttft": None, "duration": None, "completion_tokens": 0},
    *({"request_id": f"more-{number}", "at": AT + 60 + 2 * number, "tenant": "acme"} for number in range(10)),
)  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    # In the order in which they ended, as records are.
    rows = [RecordedRequest.from_json({**ASKED, **row}) for row in reversed(REQUESTS)]
    path.write_bytes(b"\n".join(row.to_json() for row in rows))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path / "a", POLICY)


def written(folder: Path, policy: str) -> Path:
    folder.mkdir()
    (folder / "gateway.yaml").write_text(policy)
    return folder


def test_two_policies_on_one_trace(
    trace: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = written(tmp_path / "b", POLICY.replace("max_concurrency: 1", "max_concurrency: 4").replace(
        "hobby: {quotas", "acme2: {}\n  hobby: {budget: {usd_per_day: 0.0001}, quotas"
    ))  # fmt: skip
    page = tmp_path / "report.html"
    policies = ["--policy", str(folder), "--policy", str(other)]
    assert main(["replay", str(trace), *policies, "--json", "--html", str(page)]) == 0
    told = json.loads(capsys.readouterr().out)
    first, second = told["policies"]

    kinds = {name: first["all"][name] for name in ("cached", "rerouted", "left", "blocked", "refused")}
    assert kinds == {"cached": 1, "rerouted": 1, "left": 1, "blocked": 1, "refused": 1}
    assert first["all"]["answered"] == len(REQUESTS) - sum(kinds.values())
    [limit] = [one for one in first["reasons"] if one["kind"] == "refused"]
    assert "2 requests per minute" in limit["why"]
    assert limit["policy_lines"] == [f"{folder}/gateway.yaml:18 (tenants.hobby.quotas.requests_per_minute)"]
    # It was measured on the trace: 0.2 s to the first token, 0.01 s a token; one place, which is taken until 1.2 s.
    assert first["tiers"]["gold"]["wait_s"]["p99"] == pytest.approx(0.7, abs=0.15)
    assert first["tiers"]["gold"]["ttft_s"]["p50"] == pytest.approx(0.2, abs=0.02)
    assert any("measured on" in one["from"] for one in first["services"])
    assert second["tiers"]["gold"]["wait_s"]["p99"] == 0.0
    assert first["tenants"]["acme"]["cost_usd"] == pytest.approx((100 * 10 + 101 * 20) / 1e6, rel=0.2)

    difference = told["difference"]
    assert difference["tenants"]["hobby"]["worse"] == 0  # their model is free
    better = [one for one in difference["changes"] if one["verdict"] == "better"]
    assert [one["examples"][0]["request"] for one in better] == ["waits"]
    assert "max_concurrency" in better[0]["policy_lines"][0]
    html = page.read_text()
    assert "http" not in html.replace("http://www.w3.org", "")
    assert "waits" in html


def test_who_is_worse_off_is_told_with_the_line_that_made_it_so(
    trace: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = written(tmp_path / "b", POLICY.replace("requests_per_minute: 2", "requests_per_minute: 1"))
    policies = ["--policy", str(folder), "--policy", str(other)]
    assert main(["replay", str(trace), *policies, "--fail-if-worse", "0.01"]) == 1
    said = capsys.readouterr().out
    assert "Who is worse off under B: 1 of 19 requests" in said
    worse = said[said.index("worse: 1 (hobby 1): answered -> refused") :]
    assert f"decided at {other}/gateway.yaml:18 (tenants.hobby.quotas.requests_per_minute)" in worse
    assert "second, 2025-12-01 12:00:12.000, hobby" in worse


def test_a_policy_may_have_the_model_that_there_was_not(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    refused = {"outcome": "refused", "status": 404, "code": "model_not_found", "completion_tokens": 0}
    where = {"at": AT, "request_id": "new", "tenant": "acme", "backend": "", "target": "", "stream": False}
    row = {**ASKED, **where, **refused, "model": "new", "ttft": None, "duration": 0.001}
    trace.write_bytes(RecordedRequest.from_json(row).to_json())
    other = written(
        tmp_path / "b", POLICY.replace("  big: {", "  new: {targets: [{backend: own, model: m}]}\n  big: {")
    )
    policies = ["--policy", str(folder), "--policy", str(other)]
    assert main(["replay", str(trace), *policies, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["all"]["refused"] for one in told["policies"]] == [1, 0]
    assert [one["verdict"] for one in told["difference"]["changes"]] == ["better"]


@pytest.mark.parametrize(("model", "kind"), [("big", "failed"), ("m", "rerouted")])
def test_a_stream_that_broke_off_is_whole_only_where_the_same_model_goes_on(
    model: str, kind: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The caller has the beginning of an answer; another model's is no end of it."""
    row = {**ASKED, "at": AT, "tenant": "acme", "outcome": "failed", "status": 502, "code": "upstream_cut"}
    trace = tmp_path / "cut.jsonl"
    trace.write_bytes(RecordedRequest.from_json(row).to_json())
    file = folder / "gateway.yaml"
    file.write_text(POLICY.replace("{backend: paid, model: big}", f"{{backend: paid, model: {model}}}").replace(
        "paid/big", f"paid/{model}"
    ))  # fmt: skip
    assert main(["replay", str(trace), "--policy", str(folder), "--json"]) == 0
    [policy] = json.loads(capsys.readouterr().out)["policies"]
    assert policy["all"][kind] == 1


def test_an_outage_that_never_was(trace: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["replay", str(trace), "--policy", str(folder), "--json", "--outage", "own=60s+60s:503"]
    assert main(command) == 0
    [policy] = json.loads(capsys.readouterr().out)["policies"]
    assert policy["all"]["rerouted"] == 11
    assert {one["why"] for one in policy["reasons"] if one["kind"] == "rerouted"} >= {"upstream_unavailable"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "caht"], "did you mean 'chat'?"),
        (["--tenants", "acme=0"], "'acme=0' should be a name and a share above 0"),
        (["--outage", "own=soon"], "should be a backend, when its outage begins"),
        (["--outage", "onw=1m+1m"], "no backend of"),
        (["--service", "own:first=fast"], "'fast' should be a time"),
        (["--speed", "0"], "--speed should be above 0"),
        (["--policy", "b", "--policy", "c"], "twice to compare"),
    ],
)
def test_what_is_wrong_is_said(
    trace: Path, folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["replay", str(trace), "--policy", str(folder), *options]) == 2
    assert said in capsys.readouterr().err


def test_what_is_no_traffic_is_said(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert main(["replay", str(tmp_path / "other.csv"), "--policy", str(folder)]) == 2
    assert "other.csv:2" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "none.csv"), "--policy", str(folder)]) == 2
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_replay_leaves_nothing_behind(
    folder: Path, tmp_path: Path, sign: signal.Signals
) -> None:
    trace = tmp_path / "long.csv"
    rows = "".join(
        f"2025-01-01 {n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}.0,50,50\n" for n in range(80_000)
    )
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "gateway", "replay", str(trace), "--policy", str(folder)]
    env = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 60
        while not children.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, sign)  # as a terminal does: to the child, too
        out, err = process.communicate(timeout=60)
    if sign == signal.SIGINT:
        assert (process.returncode, out) == (130, "")
        assert err == "tollgate replay: interrupted; nothing was written\n"
    assert [*temporary.iterdir()] == []


def test_adapters_that_were_asked_are_models_that_nothing_stands_in_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapters = """\
adapters:
  folder: /mnt
  servers: {own: {slots: 2, folder: /in}}
  listed: {paid: {tenants: [acme]}}
keys: [{id: narrow, sha256: %s, tenant: acme, models: [big]}]
""" % ("0" * 64)
    policy = POLICY.replace("two/v1, api_key", "two/v1, telemetry: vllm, api_key") + adapters
    folder = written(tmp_path / "a", policy)
    fails = {
        "outcome": "failed",
        "status": 502,
        "code": "upstream_unavailable",
        "ttft": None,
        "duration": None,
    }
    rows: list[Mapping[str, Any]] = [
        {"tenant": "acme", "model": "chat:support"},
        {"tenant": "hobby", "model": "chat:own"},
        {"tenant": "acme", "model": "chat:support", **fails, "completion_tokens": 0},
        {"tenant": "acme", "model": "big:sql", "backend": "paid", "target": "sql"},
        {"tenant": "acme", "model": "big:sql", "backend": "paid", "target": "sql", "key": "narrow"},
        {"tenant": "acme", "model": "chat:support", "key": "narrow"},
        {"tenant": "hobby", "model": "big:sql", "backend": "paid", "target": "sql"},
        {"tenant": "acme", "model": "none:sql"},
    ]
    trace = tmp_path / "trace.jsonl"
    made = [RecordedRequest.from_json({**ASKED, "at": AT + 60 * n, **row}) for n, row in enumerate(rows)]
    trace.write_bytes(b"\n".join(one.to_json() for one in made))
    assert main(["replay", str(trace), "--policy", str(folder), "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)["policies"]
    kinds = {name: told["all"][name] for name in ("answered", "rerouted", "failed", "refused")}
    assert kinds == {"answered": 4, "rerouted": 0, "failed": 1, "refused": 3}
    refused = {one["why"]: one for one in told["reasons"] if one["kind"] == "refused"}
    assert refused.keys() == {"model_not_found"}
    assert told["tenants"]["acme"]["cost_usd"] == pytest.approx(2 * (100 * 10 + 101 * 20) / 1e6, rel=0.2)
