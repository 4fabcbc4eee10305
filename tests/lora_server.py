"""A server of one model and LoRA adapters that it has of itself, as vLLM and SGLang list and name them. It answers with
the name that it was asked by."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.fakes import completion, delta, sse
from tests.serving import Server

VLLM = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
SGLANG = ("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage")
BASE = "meta-llama/Llama-3.1-8B-Instruct"


@dataclass
class LoraServer:
    adapters: list[str] = field(default_factory=list)
    kind: Literal["vllm", "sglang"] = "vllm"
    missing: set[str] = field(default_factory=set)
    """Those that it lists, and does not have."""
    listing: bytes | None = None
    """What it says in place of its list."""
    running: Sequence[str] = ()
    max_lora: int = 4
    api_key: str | None = None
    url: str = ""
    asked: list[str] = field(default_factory=list)
    """The models of requests."""
    listed: int = 0
    """How often it was asked for its list."""

    async def models(self, request: Request) -> Response:
        self.listed += 1
        if self.api_key is not None and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return JSONResponse({"error": "Unauthorized"}, 401)
        if self.listing is not None:
            return Response(self.listing, media_type="application/json")
        base = self._card(BASE, "/models/llama", None)
        cards = [base, *(self._card(name, f"/loras/{name}", BASE) for name in self.adapters)]
        return JSONResponse({"object": "list", "data": cards})

    def _card(self, id: str, root: str, parent: str | None) -> dict[str, Any]:
        permission = [{"id": "modelperm-1", "object": "model_permission", "allow_sampling": True}]
        card = {"id": id, "object": "model", "owned_by": self.kind, "root": root, "parent": parent}
        return card | {
            "created": int(time.time()),
            "max_model_len": None if parent else 8192,
            "permission": permission,
        }

    async def metrics(self, request: Request) -> Response:
        figures = {"vllm": VLLM, "sglang": SGLANG}[self.kind]
        lines = [f"process_cpu_seconds_total {time.monotonic()}", *(f"{name} 0.0" for name in figures)]
        names = ",".join(self.running)
        for running, at in (("", 1.0), (names, time.time()), ("stale", 2.0)):
            labels = f'max_lora="{self.max_lora}",running_lora_adapters="{running}",waiting_lora_adapters=""'
            lines.append(f"vllm:lora_requests_info{{{labels}}} {at}")
        return Response("\n".join(lines) + "\n", media_type="text/plain")

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        name = body["model"]
        self.asked.append(name)
        # SGLang answers with its own model whatever else is asked; what stands after a colon is an adapter.
        asked = name.partition(":")[2] if self.kind == "sglang" else "" if name == BASE else name
        if asked and (asked not in self.adapters or asked in self.missing):
            error = {"message": f"The model `{name}` does not exist.", "type": "NotFoundError", "code": 404}
            return JSONResponse({"error": error}, 404)
        said = asked or "the base model"
        if not body.get("stream"):
            return JSONResponse(completion(said, model=name))
        events = [delta("", role="assistant"), delta(said), delta(finish="stop")]
        return Response(b"".join(map(sse, events)) + b"data: [DONE]\n\n", media_type="text/event-stream")

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/metrics", self.metrics),
            ]
        )


@asynccontextmanager
async def lora_server(**settings: Any) -> AsyncIterator[LoraServer]:
    found = LoraServer(**settings)
    async with _running(found):
        yield found


@asynccontextmanager
async def lora_servers(*of: LoraServer) -> AsyncIterator[tuple[LoraServer, ...]]:
    async with AsyncExitStack() as stack:
        for one in of:
            await stack.enter_async_context(_running(one))
        yield of


@asynccontextmanager
async def _running(found: LoraServer) -> AsyncIterator[None]:
    sock = socket.create_server(("127.0.0.1", 0))
    found.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    server = Server(uvicorn.Config(found.app(), log_config=None, lifespan="on", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        yield
    finally:
        server.should_exit = True
        await task
