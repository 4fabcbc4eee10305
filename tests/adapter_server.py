"""A server of one model that loads adapters as the bundled engine and vLLM do, and answers each question with the
SHA-256 of the weights that it has under the name that is asked: nobody can be given another's without its showing."""

from __future__ import annotations

import asyncio
import io
import socket
import tarfile
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.fakes import completion, delta, sse
from tests.serving import Server

TOKEN = "adapter-token"


@dataclass
class AdapterServer:
    slots: int | None = None
    """Beyond these it refuses to load."""
    token: str | None = None
    load_seconds: float = 0.0
    refuses: str | None = None
    """What it says of every adapter."""
    url: str = ""
    served: dict[str, str] = field(default_factory=dict)
    """By name, the SHA-256 of the weights."""
    unreadable: set[str] = field(default_factory=set)
    """Names whose files are gone."""
    in_use: dict[str, int] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    most: int = 0
    """That it had at once."""
    own: list[str] = field(default_factory=list)
    """Adapters that it was started with."""

    def restart(self) -> None:
        self.served.clear()

    async def models(self, request: Request) -> Response:
        listed = [{"id": name, "object": "model", "parent": "base"} for name in (*self.served, *self.own)]
        return JSONResponse({"object": "list", "data": [{"id": "base", "object": "model"}, *listed]})

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        name = body["model"]
        if name not in ("base", *self.served, *self.own):
            return _error(404, f"The model `{name}` does not exist.", "model_not_found")
        if name in self.unreadable:
            return _error(
                503, "The adapter could not be read from the disk again: it is gone", "adapter_unreadable"
            )
        said = self.served.get(name, f"own {name}" if name in self.own else "the base model")
        self.in_use[name] = self.in_use.get(name, 0) + 1
        try:
            await asyncio.sleep(0)
        finally:
            self.in_use[name] -= 1
        if "prompt" in body:
            choice = {"index": 0, "text": said, "finish_reason": "stop"}
            return JSONResponse(completion(choices=[choice], object="text_completion", model=name))
        if not body.get("stream"):
            return JSONResponse(completion(said, model=name))
        events = [delta("", role="assistant"), delta(said), delta(finish="stop")]
        return Response(b"".join(map(sse, events)) + b"data: [DONE]\n\n", media_type="text/event-stream")

    async def load(self, request: Request) -> Response:
        if (refused := self._refused(request)) is not None:
            return refused
        body = await request.json()
        name = body["lora_name"]
        if self.refuses is not None:
            return _error(400, self.refuses, "invalid_value")
        if name in self.served:
            return _error(400, f"The lora adapter '{name}' has already been loaded.", None)
        weights = (Path(body["lora_path"]) / "adapter_model.safetensors").read_bytes()
        return await self._loaded(name, weights)

    async def put(self, request: Request) -> Response:
        if (refused := self._refused(request)) is not None:
            return refused
        data, name = await request.body(), request.path_params["name"]
        digest = b64encode(sha256(data).digest()).decode()
        if request.headers["content-digest"] != f"sha-256=:{digest}:":
            return _error(400, "The body has another SHA-256.", "invalid_value")
        if self.refuses is not None:
            return _error(400, self.refuses, "invalid_value")
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            weights = archive.extractfile("adapter_model.safetensors").read()  # type: ignore[union-attr]
        return await self._loaded(name, weights)

    async def _loaded(self, name: str, weights: bytes) -> Response:
        if self.slots is not None and len(self.served) >= self.slots and name not in self.served:
            return _error(503, "No slot is free.", "adapters_full")
        await asyncio.sleep(self.load_seconds)
        self.loads.append(name)
        self.served[name] = sha256(weights).hexdigest()
        self.most = max(self.most, len(self.served))
        return Response("Success")

    async def unload(self, request: Request) -> Response:
        if (refused := self._refused(request)) is not None:
            return refused
        name = (await request.json())["lora_name"]
        if self.served.pop(name, None) is None:
            return _error(404, "There is no such adapter.", "model_not_found")
        self.unloads.append(name)
        self.unreadable.discard(name)
        while self.in_use.get(name):  # noqa: ASYNC110
            await asyncio.sleep(0)
        return Response("Success")

    async def state(self, request: Request) -> Response:
        return JSONResponse({"running": 0, "waiting": 0, "max_num_seqs": 8})

    async def health(self, request: Request) -> Response:
        return Response("ok")

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.chat, methods=["POST"]),
                Route("/v1/load_lora_adapter", self.load, methods=["POST"]),
                Route("/v1/unload_lora_adapter", self.unload, methods=["POST"]),
                Route("/v1/adapters/{name}", self.put, methods=["PUT"]),
                Route("/v1/engine/state", self.state),
                Route("/health", self.health),
            ]
        )

    def _refused(self, request: Request) -> Response | None:
        if self.token is None or request.headers.get("authorization") == f"Bearer {self.token}":
            return None
        return _error(401, "This path needs the adapters' token.", "invalid_api_key")


def _error(status: int, message: str, code: str | None) -> Response:
    return Response(
        orjson.dumps({"error": {"message": message, "type": "invalid_request_error", "code": code}}),
        status,
        media_type="application/json",
    )


@asynccontextmanager
async def adapter_server(**settings: Any) -> AsyncIterator[AdapterServer]:
    found = AdapterServer(**settings)
    sock = socket.create_server(("127.0.0.1", 0))
    found.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    server = Server(uvicorn.Config(found.app(), log_config=None, lifespan="on", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        yield found
    finally:
        server.should_exit = True
        await task
