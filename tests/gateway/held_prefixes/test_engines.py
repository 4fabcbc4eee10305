"""Two bundled engines with the demo model: a request goes to the one whose digest has its prefix."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from gateway.prefix_sharing import alias
from tests.gateway.held_prefixes.test_over_http import ask_body, held, went_to
from tests.ports import free_port
from tests.serving import KEY, a_policy, key, serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
TEXT = "The quick brown fox jumps over the lazy dog and runs into the wood. " * 6


@asynccontextmanager
async def engine(folder: Path) -> AsyncIterator[str]:
    port = free_port()
    with (folder / f"engine-{port}.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "engine",
                "serve",
                "--model",
                "demo",
                "--port",
                str(port),
                "--threads",
                "1",
            ),
            env=os.environ,
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(timeout=300) as http, asyncio.timeout(300):
            while True:
                try:
                    if (await http.get(f"{url}/health")).status_code == 200:
                        break
                except httpx.TransportError:
                    assert process.returncode is None
                await asyncio.sleep(0.1)
        yield url
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("sharing", ["none", "system", "all"])
async def test_a_request_goes_to_the_engine_that_has_its_prefix(tmp_path: Path, sharing: str) -> None:
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(engine(tmp_path)) for _ in range(2)]
        model = {
            "targets": [{"backend": "own", "model": "demo"}],
            "select": "score",
            "prefix_sharing": sharing,
        }
        written = a_policy(
            "",
            backends={"own": {"kind": "engine", "replicas": urls}},
            models={"m": model},
            keys=[key(KEY, "acme-1", tenant="acme")],
            shared_prompts={"fox": TEXT} if sharing == "system" else {},
        )
        gateway = await stack.enter_async_context(serving(tmp_path / "p", written))
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=300))
        for number, url in enumerate([*urls, urls[0]]):
            name = "own@" + url.removeprefix("http://")
            headers = {"x-tollgate-tenant": alias("acme"), "x-tollgate-prefix-sharing": sharing}
            async with asyncio.timeout(300):
                for attempt in itertools.count():
                    # Asked past the gateway, as another gateway would, and never before: only the digest tells.
                    messages = [
                        {"role": "system", "content": TEXT},
                        {"role": "user", "content": f"{number} {attempt} {TEXT}"},
                    ]
                    body = {"model": "demo", "messages": messages, "max_tokens": 1}
                    answer = await http.post(f"{url}/v1/chat/completions", json=body, headers=headers)
                    assert answer.status_code == 200, answer.text
                    await asyncio.sleep(1.0)  # it is told once a second, and asked for twice
                    score = await ask_body(gateway, {**body, "model": "m"})
                    tokens = answer.json()["usage"]["prompt_tokens"]
                    if went_to(score) == name and held(score).get(name, 0) > tokens - 64:
                        break
