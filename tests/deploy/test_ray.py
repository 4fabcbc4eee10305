"""The engine under Ray Serve: ``deploy/ray/tollgate_engine.py``, run by Ray itself.

Ray is large, and of an environment of its own: ``TOLLGATE_RAY`` names its folder (``python -m venv F; F/bin/pip install
'ray[serve]'``). Without it these are skipped.
"""

from __future__ import annotations

import ast
import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.ports import free_port

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "ray" / "tollgate_engine.py"
CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0}


def test_it_needs_ray_alone() -> None:
    """No module of ours, nor torch: the engine may be of another environment."""
    needed = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(FILE.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert needed - sys.stdlib_module_names == {"aiohttp", "ray", "starlette"}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[str]:
    environment = os.environ.get("TOLLGATE_RAY")
    if environment is None:
        pytest.skip("TOLLGATE_RAY names no environment with ray[serve]")
    port, short = free_port(), Path("/tmp") / f"tollgate-ray-{os.getpid()}"  # paths of sockets must be short
    config = tmp_path / "serve.yaml"
    config.write_text(
        f"http_options: {{host: 127.0.0.1, port: {port}}}\n"
        "applications:\n"
        "- name: engine\n"
        "  route_prefix: /\n"
        "  import_path: tollgate_engine:build\n"
        f'  args: {{model: demo, command: "{sys.executable} -m engine serve", cpus: "0.5"}}\n'
    )
    env = {**os.environ, "RAY_TMPDIR": str(short), "RAY_USAGE_STATS_ENABLED": "0"}
    short.mkdir()
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(f"{environment}/bin/serve", "run", str(config)),
            cwd=FILE.parent,
            env=env,
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        await process.wait()
        shutil.rmtree(short, ignore_errors=True)


@pytest.mark.slow
async def test_ray_runs_the_engine(served: str) -> None:
    """Whole and streamed answers; and one that a client leaves ends at the engine."""
    async with httpx.AsyncClient(base_url=served, trust_env=False, timeout=300) as client:
        async with asyncio.timeout(600):
            while True:
                try:
                    if (await client.get("/v1/models")).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.5)
        whole = (await client.post("/v1/chat/completions", json=CHAT)).json()
        text = whole["choices"][0]["message"]["content"]
        assert text and whole["usage"]["completion_tokens"] > 0
        pieces = []
        async with client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            pieces = [line async for line in answer.aiter_lines() if line]
        assert pieces[-1] == "data: [DONE]" and len(pieces) > 3
        wrong = await client.post("/v1/chat/completions", json={"model": "demo"})
        assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "invalid_request_error")
        long = {**CHAT, "stream": True, "max_tokens": 1500, "ignore_eos": True}
        async with client.stream("POST", "/v1/chat/completions", json=long) as answer:
            await anext(answer.aiter_lines())
        async with asyncio.timeout(120):
            while running(await client.get("/metrics")):  # noqa: ASYNC110
                await asyncio.sleep(0.2)


def running(answer: httpx.Response) -> bool:
    (line,) = (
        line for line in answer.text.splitlines() if line.startswith("tollgate_engine_running_requests ")
    )
    return float(line.split()[-1]) > 0
