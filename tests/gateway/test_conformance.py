"""Answers and errors are as the published APIs have them, in both dialects, from providers that answer in full."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from openai.types.chat import ChatCompletionMessage
from starlette.types import ASGIApp

from benchmarks.conformance.providers import anthropic, openai
from benchmarks.conformance.published import Wrong, fits
from benchmarks.conformance.shapes import CASES, MESSAGES, Case
from benchmarks.conformance.stack import Stack, policy
from tests.serving import KEY, Server, key, serving

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Both providers and a gateway, in a loop of their own beside the tests'."""
    folder = tmp_path_factory.mktemp("conformance")
    started: list[Stack] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with _running(folder) as stack:
            started.append(stack)
            ready.set()
            await asyncio.to_thread(over.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        [stack] = started
        yield stack
    finally:
        over.set()
        thread.join()


@asynccontextmanager
async def _running(folder: Path) -> AsyncIterator[Stack]:
    async with _provider(openai.app()) as openais, _provider(anthropic.app()) as anthropics:
        urls = {"gateway": "", "engine": NOWHERE, "openai": openais, "anthropic": anthropics}
        rules: Any = policy(urls)
        rules["backends"]["bundled"].pop("launch")
        rules["keys"] = [key(KEY, "acme-1", tenant="acme")]
        async with serving(folder / "policies", rules) as gateway:
            yield Stack(gateway.url, KEY, openais, anthropics, NOWHERE, {})


@asynccontextmanager
async def _provider(app: ASGIApp) -> AsyncIterator[str]:
    sock = socket.create_server(("127.0.0.1", 0))
    server = Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.parametrize("model", [openai.MODEL, anthropic.MODEL])
def test_it_is_as_published(stack: Stack, model: str, case: Case) -> None:
    case.run(stack, model)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_the_providers_themselves_answer_as_published(stack: Stack, case: Case) -> None:
    if case.path.startswith(MESSAGES):
        case.run(replace(stack, gateway=stack.anthropic, key=anthropic.KEY), anthropic.MODEL)
    else:
        case.run(replace(stack, gateway=stack.openai, key=openai.KEY), openai.MODEL)


MESSAGE: dict[str, Any] = {"role": "assistant", "content": "Hi", "refusal": None}


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        (MESSAGE, None),
        ({**MESSAGE, "content": 7}, "content: Input should be a valid string"),
        ({**MESSAGE, "role": "user"}, "role: Input should be 'assistant'"),
        ({"role": "assistant", "content": "Hi"}, "missing: refusal"),
    ],
)
def test_what_is_not_as_published_is_told(value: dict[str, Any], wrong: str | None) -> None:
    if wrong is None:
        fits(ChatCompletionMessage, value)
    else:
        with pytest.raises(Wrong, match=wrong):
            fits(ChatCompletionMessage, value)
