"""What a server says of itself: its models, its state, its health, its metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.server.failures import json_response
from engine.server.gpus import GpuSampler
from engine.server.health import Health

ModelEntry = dict[str, object]


@dataclass(slots=True)
class About:
    models: Callable[[], list[ModelEntry]]
    model: Callable[[str], ModelEntry]
    """By its name. Raises ``ModelNotFound``."""
    health: Health
    render_metrics: Callable[[], bytes]
    state: Callable[[], dict[str, Any]]
    gpus: GpuSampler | None = None

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self._models),
            Route("/v1/models/{model:path}", self._model),
            Route("/v1/engine/state", self._state),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
        ]

    async def _models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": self.models()})

    async def _model(self, request: Request) -> Response:
        return json_response(self.model(request.path_params["model"]))

    async def _state(self, request: Request) -> Response:
        gpus = [] if self.gpus is None else self.gpus.to_list()
        return json_response({**self.state(), "gpus": gpus})

    async def _health(self, request: Request) -> Response:
        await self.health.check()
        return json_response({"status": "ok"})

    async def _metrics(self, request: Request) -> Response:
        return Response(self.render_metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")


def model_entry(name: str, created: int, max_model_len: int) -> ModelEntry:
    """As OpenAI's API lists a model, and its longest context."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "tollgate",
        "max_model_len": max_model_len,
    }
