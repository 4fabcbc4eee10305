"""``/healthz``: the process is alive. ``/readyz``: it can serve, proven by work. ``/metrics``: its figures."""

from __future__ import annotations

import math

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.observe.metrics import Metrics
from gateway.web.context import Context


async def healthz(request: Request) -> Response:
    return JSONResponse({"status": "alive"})


async def readyz(request: Request) -> Response:
    """200 when at least one backend proves that it can serve: the engine by decoding a token, others by an answer;
    and no guard that refuses what it cannot judge waits for its model, whichever tenants it looks after."""
    verdict = await Context.of(request.scope).runtime.readiness.verdict()
    body = {
        "status": "ready" if verdict.ready else "not ready",
        "backends": {name: reason or "ready" for name, reason in verdict.reasons.items()},
        **({"guards": dict(verdict.guards)} if verdict.guards else {}),
    }
    if verdict.ready:
        return JSONResponse(body)
    return JSONResponse(body, status_code=503, headers={"retry-after": str(math.ceil(verdict.retry_after))})


class MetricsPage:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def page(self, request: Request) -> Response:
        body, kind = self._metrics.render()
        return Response(body, headers={"content-type": kind})
