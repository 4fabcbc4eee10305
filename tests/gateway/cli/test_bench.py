from __future__ import annotations

import argparse
import asyncio
import csv
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import bench
from gateway.lab.bench.arrivals import Arrivals, Rate
from gateway.lab.bench.conversations import Drawn, Given, Traced
from gateway.lab.bench.errors import OptionError
from gateway.lab.bench.load import Extent, Load
from gateway.lab.bench.options import given, plan_of
from gateway.lab.bench.session import Plan
from tests.fakes import Action, FakeUpstream, answer_events, delta, reply, sse, stream
from tests.import_graph import ROOT

ANSWER = stream(*answer_events("one", " two"))


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    return parser.parse_args(["bench", *arguments])


def plan(*arguments: str, **env: str) -> Plan:
    return plan_of(parsed(*arguments), env)


async def tollgate(*arguments: str, interrupt: asyncio.Event | None = None) -> tuple[int | None, str, str]:
    """The real command, beside the test's servers."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "bench", *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    if interrupt is not None:
        await interrupt.wait()
        process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


# --- the options ----------------------------------------------------------------------------------------------


def test_a_url_alone_is_a_closed_loop() -> None:
    found = plan("http://127.0.0.1:8000")
    assert found.loads == [Load(8)] and found.extent == Extent(100, warm_up_requests=5)
    [server] = found.servers
    assert (server.name, server.url, server.api.name) == (
        "127.0.0.1:8000",
        "http://127.0.0.1:8000/v1/chat/completions",
        "chat",
    )


@pytest.mark.parametrize(
    ("url", "api", "posted"),
    [
        ("localhost:8000/", None, "http://localhost:8000/v1/chat/completions"),
        ("https://api.example.com/v1", None, "https://api.example.com/v1/chat/completions"),
        (
            "https://example.com/serving/v2/chat/completions",
            None,
            "https://example.com/serving/v2/chat/completions",
        ),
        ("http://x/v1/completions", None, "http://x/v1/completions"),
        ("http://x/v1/messages", None, "http://x/v1/messages"),
        ("http://x", "messages", "http://x/v1/messages"),
        ("http://x/openai/v1?api-version=1", None, "http://x/openai/v1/chat/completions?api-version=1"),
        ("http://x/voice", None, "http://x/voice/v1/chat/completions"),
    ],
)
def test_where_requests_go(url: str, api: str | None, posted: str) -> None:
    [server] = plan(url, *(["--api", api] if api else [])).servers
    assert server.url == posted and server.api.path in posted
    assert server.models_url == posted.replace(server.api.path, "models")


def test_servers_have_names_and_what_is_said_of_each() -> None:
    found = plan(
        *("old=http://a/v1", "new=http://b/v1?x=1", "--model", "m", "--model", "new=n=1"),
        *("--key-env", "OLD_KEY", "--header", "x-one: 1", "--whole", "--ignore-eos"),
        OLD_KEY="secret",
    )
    old, new = found.servers
    assert (old.name, old.model, new.name, new.model) == ("old", "m", "new", "n=1")
    assert dict(old.headers) == {"authorization": "Bearer secret", "x-one": "1"}
    assert not old.stream and old.extra == {"ignore_eos": True}
    assert "secret" not in repr(old)


@pytest.mark.parametrize(
    ("arguments", "loads"),
    [
        (["--concurrency", "1,4,4"], [Load(1), Load(4)]),
        (["--rate", "2,8"], [Load(None, Rate(rate, rate), Arrivals("gamma", 1.0)) for rate in (2, 8)]),
        (["--rate", "8", "--concurrency", "2"], [Load(2, Rate(8, 8), Arrivals("gamma", 1.0))]),
        (
            ["--rate", "1-9", "--duration", "1m", "--arrivals", "constant"],
            [Load(None, Rate(1, 9, 60.0), Arrivals("constant", 1.0))],
        ),
    ],
    ids=["closed", "open", "bounded", "ramp"],
)
def test_loads(arguments: list[str], loads: list[Load]) -> None:
    assert plan("x", *arguments).loads == loads


def test_a_trace_brings_its_times_or_its_lengths_alone(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"at": 0, "prompt_tokens": 8, "output_tokens": 2}')
    trace = ["x", "--trace", str(tmp_path / "t.jsonl")]
    timed = plan(*trace)
    assert timed.loads == [Load(traced=True)] and isinstance(timed.workload, Traced)
    assert timed.extent == Extent(warm_up_requests=5), "all of it"
    lengths = plan(*trace, "--rate", "3")
    assert isinstance(lengths.workload, Drawn) and lengths.workload.lengths_of
    with pytest.raises(OptionError, match="--length-scale"):
        plan(*trace, "--prompt-tokens", "5")


def test_prompts_and_spans(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "Hello"}')
    found = plan("x", "--prompts", str(tmp_path / "p.jsonl"), "--duration", "2m", "--warm-up", "10s")
    assert isinstance(found.workload, Given)
    assert found.extent == Extent(seconds=120.0, warm_up_seconds=10.0)


def test_the_knee() -> None:
    found = plan("x", "--find-knee", "--slo", "ttft=1s", "--rate", "4", "--max-rate", "50")
    assert found.knee is not None and (found.knee.first, found.knee.most, found.knee.share) == (4, 50, 0.95)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["a=http://x", "a=http://y"], "two servers are called 'a'"),
        (["http://x/v1/messages", "--api", "chat"], "speaks messages"),
        (["http://:x"], "is no URL"),
        (["ftp://x"], "is no URL"),
        (["http://me:secret@x"], "leave the password out"),
        (["x", "--key-env", "NOT_THERE"], "export NOT_THERE="),
        (["x", "--key-env", "y=NOT_THERE"], "no server is called 'y'"),
        (["x", "--header", "novalue"], "--header"),
        (["x", "--extra-body", "[1]"], "--extra-body"),
        (["x", "--concurrency", "0"], "--concurrency"),
        (["x", "--rate", "1-5"], "--duration"),
        (["x", "--rate", "5", "--concurrency", "1,2"], "one number"),
        (["x", "--find-knee"], "--slo"),
        (["x", "--find-knee", "--slo", "e2e=1s", "--concurrency", "2"], "--rate"),
        (["x", "--find-knee", "--slo", "e2e=1s", "--rate", "1,2"], "one --rate"),
        (["x", "--slo-share", "95"], "0.95"),
        (["x", "--requests", "0"], "at least 1"),
        (["x", "--rounds", "0"], "at least 1"),
        (["x", "--tolerance", "0"], "more than 0"),
        (["x", "--duration", "5"], "--duration: '5'"),
        (["x", "--warm-up", "soon"], "--warm-up"),
        (["x", "--prompts", "p", "--prompt-tokens", "5"], "brings its own texts"),
        (["x", "--trace", "none.csv"], "none.csv"),
        (["x", "--turns", "2", "--prompts", "p"], "'turns'"),
    ],
)
def test_what_cannot_be_is_said(arguments: list[str], told: str) -> None:
    with pytest.raises(OptionError, match=re.escape(told)):
        plan(*arguments)


def test_the_report_has_no_secrets() -> None:
    told = given(parsed("x", "--header", "Authorization: Bearer secret", "--key-env", "KEY", "--rate", "3"))
    assert told["header"] == ["Authorization"] and told["rate"] == "3" and told["key_env"] == ["KEY"]


# --- the command ----------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_table_and_files(tmp_path: Path) -> None:
    async with FakeUpstream(ANSWER) as one, FakeUpstream(ANSWER) as other:
        html, samples = tmp_path / "report.html", tmp_path / "samples.csv"
        code, out, err = await tollgate(
            *(f"<old>={one.base_url}", f"new={other.base_url}", "--model", "m"),
            *("--rate", "100,200", "--requests", "10", "--warm-up", "2", "--slo", "e2e=60s"),
            *("--html", str(html), "--samples", str(samples)),
        )
    assert code == 0 and not err
    heading, *lines = out.splitlines()
    assert heading.startswith("SERVER") and len([line for line in lines if "/s Poisson" in line]) == 4
    assert lines[0].split()[:2] == ["<old>", "100/s"] and "100.0 %" in lines[0]
    page = html.read_text()
    assert page.count("<svg") >= 5 and "&lt;old&gt;" in page and "<old>" not in page
    assert not re.findall(r"(?:src|href)=|@import|url\(", page), "nothing is fetched"
    rows = list(csv.DictReader(samples.read_text().splitlines()))
    assert len(rows) == 2 * 2 * 12 and {row["outcome"] for row in rows} == {"ok"}
    assert sum(row["warm_up"] == "1" for row in rows) == 8
    assert all(float(row["e2e_ms"]) >= float(row["ttft_ms"]) for row in rows)


@pytest.mark.anyio
async def test_json_and_csv() -> None:
    async with FakeUpstream(ANSWER) as upstream:
        asked = (upstream.base_url, "--model", "m", "--requests", "4", "--concurrency", "2", "--warm-up", "0")
        code, out, _ = await tollgate(*asked, "--json")
        told: dict[str, Any] = json.loads(out)
        [result] = told["results"]
        assert code == 0 and result["requests"]["ok"] == 4 and told["options"]["requests"] == 4
        code, out, _ = await tollgate(*asked, "--rounds", "2")
        assert code == 0 and "2 at a time: E2E P50 between " in out
        code, out, _ = await tollgate(*asked, "--csv")
        [row] = csv.DictReader(out.splitlines())
        assert code == 0 and row["ok"] == "4" and float(row["ttft_p99_ms"]) > 0


@pytest.mark.anyio
async def test_a_calibration_holds_each_requests_lengths_and_times(tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    async with FakeUpstream(ANSWER) as upstream:
        asked = (
            upstream.base_url,
            "--model",
            "m",
            "--requests",
            "3",
            "--warm-up",
            "1",
            "--tokens-per-word",
            "1",
        )
        asked = (*asked, "--calibration", str(file))
        code, _, err = await tollgate(*asked, "--concurrency", "1,2")
        assert code == 0 and not err
        for wrong in (["--rate", "5"], ["--concurrency", "2,4"], ["--concurrency", "1"]):
            code, _, err = await tollgate(*asked, *wrong)
            assert code == 2 and "--calibration: one " in err
    found = json.loads(file.read_text())
    assert [load["concurrency"] for load in found["loads"]] == [1, 2]
    for load in found["loads"]:
        assert len(load["requests"]) == 3
        assert all(0 < ttft <= e2e and output > 0 for _, output, ttft, e2e in load["requests"])
    assert found["model"] == "m" and found["calibration"] == 1


@pytest.mark.anyio
async def test_exit_codes_for_ci(tmp_path: Path) -> None:
    failing = reply({"error": {"message": "no"}}, status=500)
    async with FakeUpstream(*[ANSWER] * 3, failing, ANSWER) as upstream:
        asked = (upstream.base_url, "--model", "m", "--requests", "4", "--concurrency", "1", "--warm-up", "0")
        asked = (*asked, "--tokens-per-word", "1")
        code, out, _ = await tollgate(*asked, "--slo-share", "0.9")
        assert code == 1 and "1 × status 500: no" in out
        assert (await tollgate(*asked, "--slo-share", "1"))[0] == 0
        assert (await tollgate(*asked, "--slo", "e2e=0ms", "--slo-share", "0.1"))[0] == 1
        code, _, err = await tollgate(*asked, "--html", str(tmp_path / "none" / "report.html"))
        assert code == 2 and "cannot be written" in err
    async with FakeUpstream(failing) as upstream:
        code, out, err = await tollgate(upstream.base_url, "--model", "m")
        assert code == 1 and not out and "does not answer one request: status 500: no" in err
    code, _, err = await tollgate("x", "--rate", "fast")
    assert code == 2 and err.startswith("tollgate bench: --rate: 'fast'")


@pytest.mark.anyio
async def test_ctrl_c_ends_with_the_report_of_what_there_is() -> None:
    hanging = stream(sse(delta("x")), Action.HANG)
    async with FakeUpstream(*[ANSWER] * 6, hanging) as upstream:
        interrupt = asyncio.Event()
        asked = (
            upstream.base_url,
            "--model",
            "m",
            "--warm-up",
            "0",
            "--concurrency",
            "1",
            "--tokens-per-word",
            "1",
        )
        running = asyncio.create_task(tollgate(*asked, "--json", interrupt=interrupt))
        await upstream.arrived(7)
        interrupt.set()
        code, out, _ = await running
    told = json.loads(out)
    assert code == 130 and told["interrupted"]
    assert told["results"][0]["requests"] == {
        "counted": 5,
        "ok": 5,
        "failed": 0,
        "warm_up": 0,
        "interrupted": 1,
    }
