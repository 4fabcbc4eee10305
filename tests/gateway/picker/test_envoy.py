"""A real Envoy asks ``tollgate epp``, as a process, which of two real engines gets a request."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.engine.live import EngineServer, eventually
from tests.envoy import envoy
from tests.ports import free_port


@contextmanager
def epp(folder: Path, policy: dict[str, Any], *options: str) -> Iterator[tuple[str, str]]:
    """``tollgate epp``: where it listens, and the URL of its metrics."""
    (folder / "policies").mkdir()
    (folder / "policies" / "policy.yaml").write_text(yaml.safe_dump(policy))
    listen, metrics = f"127.0.0.1:{free_port()}", free_port()
    command = [sys.executable, "-m", "gateway", "epp", "--policies", str(folder / "policies")]
    command += ["--listen", listen, "--health", f"127.0.0.1:{free_port()}", "--metrics-port", f"{metrics}"]
    process = subprocess.Popen(
        [*command, "--self-signed", *options], stdout=subprocess.PIPE, env=os.environ, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == f"endpoint picker ready on {listen}\n"
        yield listen, f"http://127.0.0.1:{metrics}/metrics"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
        process.stdout.close()


def two_engines(stack: ExitStack, folder: Path) -> list[EngineServer]:
    return [
        stack.enter_context(EngineServer("demo", log=folder / f"engine-{number}.log")) for number in (1, 2)
    ]


def ask(
    url: str, content: str, *, model: str = "shown", stream: bool = False, tier: str = "chat"
) -> httpx.Response:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 4,
        "stream": stream,
    }
    return httpx.post(
        f"{url}/v1/chat/completions", json=body, headers={"x-gateway-inference-objective": tier}, timeout=300
    )


def requests_of(engine: str) -> float:
    text = httpx.get(f"{engine}/metrics", trust_env=False).text
    return sum(float(value) for value in re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", text, re.M))


def pool_of(engines: list[str], **more: Any) -> dict[str, Any]:
    target = {"backend": "engines", "model": "demo"}
    return {
        "version": 1,
        "backends": {"engines": {"kind": "engine", "replicas": engines}},
        "models": {"shown": {"targets": [target], **more}},
        "tiers": {"chat": {"priority": 3}},
    }


@pytest.mark.slow
@pytest.mark.parametrize("body", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
def test_envoy_sends_requests_where_the_picker_says(tmp_path: Path, body: str) -> None:
    with ExitStack() as stack:
        engines = [one.url for one in two_engines(stack, tmp_path)]
        policy = pool_of(engines, select="prefix_affinity")
        picker, metrics = stack.enter_context(epp(tmp_path, policy, "--fallbacks", "1"))
        places = [url.removeprefix("http://") for url in engines]
        url = stack.enter_context(envoy(tmp_path, picker, places, body=body))

        # The engine knows no model of that name: it is told its own.
        whole = ask(url, "Hello")
        assert (whole.status_code, whole.json()["model"]) == (200, "demo")
        streamed = ask(url, "Hello", stream=True)
        events = [line for line in streamed.text.splitlines() if line]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[0].removeprefix("data: "))["object"] == "chat.completion.chunk"
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 200

        before = [requests_of(engine) for engine in engines]
        for _ in range(5):
            assert ask(url, "The same beginning. " * 100).status_code == 200
        eventually(lambda: sum(map(requests_of, engines)) == sum(before) + 5)
        after = [requests_of(engine) for engine in engines]
        assert sorted(now - then for now, then in zip(after, before, strict=True)) == [0, 5]

        unknown = ask(url, "Hello", model="none")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        assert "tollgate_epp_picks_total" in httpx.get(metrics, trust_env=False).text


@pytest.mark.slow
def test_envoy_goes_on_where_an_engine_dies(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = two_engines(stack, tmp_path)
        engines = [first.url, second.url]
        picker, _ = stack.enter_context(epp(tmp_path, pool_of(engines), "--fallbacks", "1"))
        places = [url.removeprefix("http://") for url in engines]
        url = stack.enter_context(envoy(tmp_path, picker, places))
        assert ask(url, "Hello").status_code == 200
        first.process.kill()
        first.process.wait(300)
        # Envoy goes on to the second that the picker names.
        assert [ask(url, f"Hello {number}").status_code for number in range(12)] == [200] * 12
