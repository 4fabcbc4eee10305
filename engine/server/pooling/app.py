"""The paths of a server of vectors or scores, and the wiring of everything behind them."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from engine.errors import EngineError, InternalError, UnsupportedParameter
from engine.pooling.client import PoolingClient
from engine.pooling.messages import PoolingReady, PoolingStep
from engine.pooling.spec import PoolingSpec
from engine.server.about import About, ModelEntry, model_entry
from engine.server.disconnect import ClientDisconnected, read_body, until_disconnect
from engine.server.failures import HANDLERS, json_response
from engine.server.gpus import GpuSampler
from engine.server.health import Health
from engine.server.hints import Hints, read_hints
from engine.server.metrics import Throughput
from engine.server.pooling.endpoints import Answer, Embeddings, ModelNames, Ranks
from engine.server.pooling.metrics import PoolingMetrics, PoolingState
from engine.server.pooling.text_encoder import CrossEncoder, TextEncoder, VerdictEncoder

log = logging.getLogger("engine.server")

_RANKS = ("/v1/rerank", "/v2/rerank", "/rerank")
_SCORES = ("/v1/score", "/score")
_GENERATING = ("/v1/chat/completions", "/v1/completions")


def create_pooling_app(
    client: PoolingClient,
    ready: PoolingReady,
    spec: PoolingSpec,
    folder: Path,
    *,
    name: str,
    max_body_bytes: int,
    also: Collection[str] | None = (),
    gpus: GpuSampler | None = None,
) -> Starlette:
    """``also``: as in ``ModelNames``. ``gpus`` are in metrics and state. Raises ``StartupError``."""
    metrics, throughput = PoolingMetrics(name), Throughput()
    state = PoolingState(name, spec.task, ready)
    health = Health(client, lambda: client.submit([[0]]))

    def observe(step: PoolingStep) -> None:
        metrics.observe(step)
        state.observe(step)
        health.observe(step)

    client.on_step = observe
    client.on_finish = throughput.finish
    client.retry_after = lambda: throughput.retry_after(client.last.waiting if client.last else 0)
    served = ServedModel(ModelNames(name, also), ready, spec)
    about = About(served.all, served.find, health, metrics.render, state.to_dict, gpus)
    if gpus is not None:
        metrics.registry.register(gpus)
    common = (client, ready, spec, served.names, metrics)
    works: dict[str, Callable[[bytes, Hints], Awaitable[Answer]]] = {}
    if spec.task == "embed":
        works["/v1/embeddings"] = Embeddings(*common, TextEncoder(folder, spec)).embed
    else:
        ranks = Ranks(*common, VerdictEncoder(folder) if spec.verdict else CrossEncoder(folder, spec))
        works |= dict.fromkeys(_RANKS, ranks.rerank) | dict.fromkeys(_SCORES, ranks.score)
    others = [path for path in ("/v1/embeddings", *_RANKS, *_SCORES, *_GENERATING) if path not in works]
    answering = partial(PoolingEndpoint, metrics=metrics, max_body_bytes=max_body_bytes)
    app = Starlette(
        routes=[
            *(Route(path, answering(path, work), methods=["POST"]) for path, work in works.items()),
            *(Route(path, served.another_task, methods=["POST"]) for path in others),
            *about.routes,
        ],
        exception_handlers=HANDLERS,
    )
    app.router.redirect_slashes = False
    return app


@dataclass(slots=True)
class PoolingEndpoint:
    """A raw ASGI application, since it must notice at any time that the client has disconnected."""

    path: str
    work: Callable[[bytes, Hints], Awaitable[Answer]]
    metrics: PoolingMetrics
    max_body_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        found: list[Answer] = []

        async def answer(body: bytes, hints: Hints) -> None:
            found.append(await self.work(body, hints))

        try:
            hints = read_hints(headers, time.monotonic())
            body = await read_body(receive, headers, self.max_body_bytes)
            await until_disconnect(receive, answer(body, hints))
            response = Response(found[0].body, headers=found[0].headers, media_type="application/json")
        except ClientDisconnected:
            self.metrics.requests.labels(self.path, "hung_up").inc()
            return
        except EngineError as error:
            response = json_response(error.body(), error.status, error.headers())
        except Exception:
            log.exception("a request failed on %s", self.path)
            error = InternalError("The engine made a mistake; its log has the details.")
            response = json_response(error.body(), error.status)
        self.metrics.requests.labels(self.path, str(response.status_code)).inc()
        await response(scope, receive, send)


@dataclass(slots=True)
class ServedModel:
    """The model, and what it is not for."""

    names: ModelNames
    ready: PoolingReady
    spec: PoolingSpec
    created: int = field(default_factory=lambda: int(time.time()))

    def all(self) -> list[ModelEntry]:
        return [self.find(self.names.name)]

    def find(self, name: str) -> ModelEntry:
        """Raises ``ModelNotFound``."""
        self.names.check(name)
        entry = model_entry(self.names.name, self.created, self.ready.max_model_len)
        return {**entry, "task": self.spec.task}

    async def another_task(self, request: Request) -> Response:
        does, has = (
            ("makes embeddings", "/v1/embeddings")
            if self.spec.task == "embed"
            else ("ranks documents", "/v1/rerank and /v1/score")
        )
        raise UnsupportedParameter(
            f"The model {self.names.name} {does}, and has no {request.url.path}: send to {has}, or ask an engine "
            "that serves another model.",
            param="model",
        )
