"""The HTTP server's paths, and the wiring of everything behind them."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from engine.client import EngineClient
from engine.core.context_caps import context_limit
from engine.errors import EngineError, InternalError, UnsupportedParameter
from engine.messages import Ready, Step
from engine.server.about import About, ModelEntry, model_entry
from engine.server.adapter_access import AdapterAccess
from engine.server.adapter_routes import AdapterRoutes
from engine.server.adapter_upload import AdapterUploads
from engine.server.adapters import Adapters, Served, name_of
from engine.server.disconnect import ClientDisconnected, read_body, until_disconnect
from engine.server.failures import HANDLERS
from engine.server.generate import Generator
from engine.server.gpus import GpuSampler
from engine.server.health import Health, decode_token
from engine.server.hints import Hints, read_hints
from engine.server.metrics import EngineMetrics, Throughput
from engine.server.prepare import ContextBudget, PreparedRequest, Preparer
from engine.server.renderer import Renderer
from engine.server.responses import DONE, ChoiceDelta, event
from engine.server.sleep import sleep_routes
from engine.server.state import EngineState
from engine.server.tokenizer import Tokenizer
from engine.server.tracing import TracedRequest, Tracer
from engine.server.vllm_metrics import VllmMetrics

log = logging.getLogger("engine.server")

_POOLING = ("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score")
"""What embedding models and rerankers have (``engine/server/pooling``), and those that generate text have not."""


def create_app(
    client: EngineClient,
    ready: Ready,
    tokenizer: Tokenizer,
    template: Renderer | None,
    *,
    name: str,
    max_body_bytes: int,
    adapters: Sequence[tuple[str, Path]] = (),
    access: AdapterAccess | None = None,
    uploads: AdapterUploads | None = None,
    also: Collection[str] | None = (),
    refuse_over_context: bool = False,
    max_string_length: int | None = None,
    tracer: Tracer | None = None,
    gpus: GpuSampler | None = None,
    sleep_mode: bool = False,
) -> Starlette:
    """``adapters``: (name, folder) of those that the engine has loaded; ``access``: who may change them (``None``:
    nobody), and what takes those that are sent; ``also``: as in ``Adapters``.

    With ``refuse_over_context`` a ``max_tokens``
    beyond what the prompt leaves of the context is an error, not clipped. ``max_string_length``: as in
    ``ServerConfig``. ``tracer`` is told of each request that asks for tokens. ``gpus`` are in metrics and state. With
    ``sleep_mode`` clients may put it to sleep. Raises
    ``StartupError``.
    """
    metrics, throughput = EngineMetrics(), Throughput()
    health = Health(client, partial(decode_token, client))
    metrics.set_ready(ready)
    vllm = VllmMetrics(metrics.registry, name, ready, lambda: _adapter_names(client))
    state = EngineState(name, ready, throughput)

    def observe(step: Step) -> None:
        metrics.observe(step, ready.blocks)
        vllm.observe(step)
        throughput.observe(step)
        state.observe(step)
        health.observe(step)

    client.on_step = observe
    client.on_finish = throughput.finish
    client.retry_after = lambda: throughput.retry_after(client.last.waiting if client.last else 0)
    models = Adapters(client, name, adapters, also, ready.adapters)
    changes = AdapterRoutes(models, access or AdapterAccess(), uploads)
    longest = ready.max_model_len // 2 if max_string_length is None else max_string_length
    preparer = Preparer(models, ready, tokenizer, template, longest or None)
    generator = Generator(client, tokenizer, metrics, vllm)
    served = ServedModels(name, models, ready)
    about = About(served.all, served.find, health, metrics.render, state.to_dict, gpus)
    if gpus is not None:
        metrics.registry.register(gpus)

    def text(path: str, prepare: Callable[[bytes, ContextBudget, bool], Awaitable[PreparedRequest]]) -> Route:
        endpoint = TextEndpoint(
            path, prepare, ready, generator, metrics, max_body_bytes, refuse_over_context, tracer
        )
        return Route(path, endpoint, methods=["POST"])

    def change(path: str, work: Callable[[bytes], Awaitable[str | bytes]], kind: str | None = None) -> Route:
        async def endpoint(request: Request) -> Response:
            headers = dict(request.scope["headers"])
            try:
                data = await read_body(request.receive, headers, max_body_bytes)
                return Response(await work(data), media_type=kind)
            except ClientDisconnected:
                return Response(status_code=400)

        return Route(path, endpoint, methods=["POST"])

    def asked(path: str, work: Callable[[bytes], Awaitable[dict[str, Any]]]) -> Route:
        """Something about a text, for which the model is not run."""

        async def answer(data: bytes) -> bytes:
            return orjson.dumps(await work(data))

        return change(path, answer, kind="application/json")

    app = Starlette(
        routes=[
            text("/v1/chat/completions", preparer.chat),
            text("/v1/completions", preparer.completion),
            asked("/tokenize", preparer.tokenize),
            asked("/detokenize", preparer.detokenize),
            *changes.routes,
            *(Route(path, served.no_vectors, methods=["POST"]) for path in _POOLING),
            *(sleep_routes(client) if sleep_mode else ()),
            *about.routes,
        ],
        exception_handlers=HANDLERS,
    )
    app.router.redirect_slashes = False
    return app


def _adapter_names(client: EngineClient) -> tuple[set[str], set[str]]:
    running, waiting = client.adapters_in_use
    return {name_of(key) for key in running}, {name_of(key) for key in waiting}


@dataclass(slots=True)
class TextEndpoint:
    """Chat and plain completions: a raw ASGI application, since it must notice at any time that the client has
    disconnected."""

    path: str
    prepare: Callable[[bytes, ContextBudget, bool], Awaitable[PreparedRequest]]
    ready: Ready
    generator: Generator
    metrics: EngineMetrics
    max_body_bytes: int
    refuse_over_context: bool
    tracer: Tracer | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = _Reply(send)
        headers = dict(scope["headers"])
        traced = None if self.tracer is None else TracedRequest(self.path, headers)
        try:
            hints = read_hints(headers, time.monotonic())
            body = await read_body(receive, headers, self.max_body_bytes)
            await until_disconnect(receive, self._answer(body, hints, reply, traced))
            status, code = str(reply.status), None
        except ClientDisconnected:
            status = code = "hung_up"
        except EngineError as error:
            status, code = str(error.status), error.code
            await reply.fail(error)
        except Exception:
            log.exception("a request failed on %s", self.path)
            status, code = "500", InternalError.code
            await reply.fail(InternalError("The engine made a mistake; its log has the details."))
        self.metrics.requests.labels(self.path, status).inc()
        if self.tracer is not None and traced is not None:
            traced.status, traced.error = reply.status, code
            self.tracer.record(traced)

    async def _answer(self, body: bytes, hints: Hints, reply: _Reply, traced: TracedRequest | None) -> None:
        arrived = time.monotonic()
        limit = context_limit(self.ready.max_model_len, self.ready.context_caps, hints.priority)
        refuse = self.refuse_over_context or hints.refuse_over_context
        prepared = await self.prepare(body, ContextBudget(limit, refuse), hints.sharing == "system")
        reply.headers = prepared.headers
        if traced is not None:
            traced.prepared = prepared
        self.metrics.prompt_tokens.inc(prepared.usage.prompt_tokens)
        salt = hints.salt(prepared.cache_salt)
        pieces = self.generator.run(
            prepared.sequences,
            prepared.stops,
            prepared.usage,
            arrived,
            hints,
            prepared.adapter,
            salt,
            prepared.shared,
            None if traced is None else traced.timelines,
            pin=prepared.pin,
        )
        try:
            if prepared.stream:
                await self._stream(prepared, pieces, reply)
            else:
                await self._whole(prepared, pieces, reply)
        finally:
            await pieces.aclose()

    async def _whole(
        self, prepared: PreparedRequest, pieces: AsyncIterator[list[ChoiceDelta]], reply: _Reply
    ) -> None:
        choices = [ChoiceDelta(index, "", None) for index in range(len(prepared.sequences))]
        async for batch in pieces:
            for piece in batch:
                choices[piece.index].add(piece)
        await reply.whole(prepared.answer.whole(choices, prepared.usage))

    async def _stream(
        self, prepared: PreparedRequest, pieces: AsyncIterator[list[ChoiceDelta]], reply: _Reply
    ) -> None:
        opened: set[int] = set()
        async for batch in pieces:
            data = b""
            for piece in batch:
                if piece.index not in opened:
                    opened.add(piece.index)
                    data += prepared.answer.opening(piece.index)
                if piece.text or piece.finish or piece.logprobs or piece.calls or piece.reasoning:
                    data += prepared.answer.chunk(piece)
            if data or not reply.status:
                await reply.part(data)
        if prepared.include_usage:
            await reply.part(prepared.answer.closing(prepared.usage))
        await reply.part(DONE, last=True)


@dataclass(slots=True)
class _Reply:
    """The response to one request. What has been sent so far decides how an error can still be reported."""

    send: Send
    status: int = 0
    """0 before the response has begun."""
    headers: dict[str, str] = field(default_factory=dict)
    """Sent beside the response's own."""

    async def whole(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.status = status
        fields = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        await self._start(fields)
        await self.send({"type": "http.response.body", "body": body})

    async def part(self, data: bytes, *, last: bool = False) -> None:
        """A part of an event stream."""
        if not self.status:
            self.status = 200
            await self._start(
                {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
            )
        await self.send({"type": "http.response.body", "body": data, "more_body": not last})

    async def fail(self, error: EngineError) -> None:
        if self.status:
            await self.part(event(error.body()), last=True)
        else:
            await self.whole(orjson.dumps(error.body()), error.status, error.headers())

    async def _start(self, fields: dict[str, str]) -> None:
        headers = [(name.encode(), value.encode()) for name, value in (fields | self.headers).items()]
        await self.send({"type": "http.response.start", "status": self.status, "headers": headers})


@dataclass(slots=True)
class ServedModels:
    """The model and its adapters, and what they are not for."""

    name: str
    adapters: Adapters
    ready: Ready
    created: int = field(default_factory=lambda: int(time.time()))

    def all(self) -> list[ModelEntry]:
        return [self._model(), *map(self._adapter, self.adapters.list())]

    def find(self, name: str) -> ModelEntry:
        """Raises ``ModelNotFound``."""
        self.adapters.key(name)
        served = self.adapters.find(name)
        return self._adapter(served) if served else self._model()

    async def no_vectors(self, request: Request) -> Response:
        raise UnsupportedParameter(
            f"The model {self.name} generates text, and has no {request.url.path}: that is for embedding models and "
            "rerankers. Ask an engine that serves one.",
            param="model",
        )

    def _model(self) -> ModelEntry:
        return model_entry(self.name, self.created, self.ready.max_model_len)

    def _adapter(self, served: Served) -> ModelEntry:
        return self._model() | {
            "id": served.name,
            "created": served.created,
            "root": str(served.folder),
            "parent": self.name,
        }
