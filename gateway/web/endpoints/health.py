"""``/healthz``: the process is alive. ``/readyz``: it can serve, proven by work. ``/metrics``: its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.observe.metrics import Metrics
from gateway.web.context import Context


async def healthz(request: Request) -> Response:
    return JSONResponse({"status": "alive"})


class ReadyPage:
    """``leaving`` exists once the gateway is to stop (``gateway.supervisor``)."""

    def __init__(self, leaving: Path | None) -> None:
        self._leaving = leaving

    async def page(self, request: Request) -> Response:
        """200 when all that this gateway runs itself can serve: an engine by decoding a token, and no guard that would
        refuse everyone while its model is not there waits for it. How providers are is told, and changes nothing."""
        if self._leaving is not None and self._leaving.exists():
            return _not_ready({"status": "stopping", "backends": {}}, 1.0)
        verdict = await Context.of(request.scope).runtime.readiness.verdict()
        body = {
            "status": "ready" if verdict.ready else "not ready",
            "backends": {name: reason or "ready" for name, reason in verdict.reasons.items()},
            **({"waits_for": verdict.waits_for} if verdict.waits_for else {}),
            **({"guards": dict(verdict.guards)} if verdict.guards else {}),
        }
        return JSONResponse(body) if verdict.ready else _not_ready(body, verdict.retry_after)


def _not_ready(body: Mapping[str, object], retry_after: float) -> Response:
    return JSONResponse(body, status_code=503, headers={"retry-after": str(math.ceil(retry_after))})


class MetricsPage:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def page(self, request: Request) -> Response:
        body, kind = self._metrics.render()
        return Response(body, headers={"content-type": kind})
