"""The scripted providers of ``benchmarks.conformance`` and a gateway before them, beside the tests' own loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from benchmarks.conformance.backends import SCRIPTED, policy
from benchmarks.conformance.stack import Stack
from tests.serving import KEY, Server, key, serving

NOWHERE = "http://127.0.0.1:9"


@contextmanager
def scripted_stack(folder: Path) -> Iterator[Stack]:
    """All the providers and a gateway, without an engine and a sidecar, in a loop of their own."""
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
    async with AsyncExitStack() as stack:
        providers = {one.kind: await stack.enter_async_context(_provider(one.app())) for one in SCRIPTED}
        rules = policy(providers, NOWHERE)
        for name, model in (("bundled", "tollgate-demo"), ("sentences", "all-minilm-l6-v2")):
            del rules["backends"][name], rules["models"][model]
        rules["keys"] = [key(KEY, "acme-1", tenant="acme")]
        gateway = await stack.enter_async_context(serving(folder / "policies", rules))
        yield Stack(gateway.url, KEY, NOWHERE, providers, {})


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
