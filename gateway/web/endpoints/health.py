"""``/healthz``: the process is alive. ``/readyz``: it can serve, proven by work. ``/metrics``: its figures."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.observe.metrics import Metrics
from gateway.web.context import Context


async def healthz(request: Request) -> Response:
    return JSONResponse({"status": "alive"})


async def readyz(request: Request) -> Response:
    """200 when at least one backend proves that it can serve: the engine by decoding a token, others by an answer."""
    verdicts = await Context.of(request.scope).runtime.readiness.verdicts()
    ready = any(verdict is None for verdict in verdicts.values())
    body = {
        "status": "ready" if ready else "not ready",
        "backends": {name: verdict or "ready" for name, verdict in verdicts.items()},
    }
    return JSONResponse(
        body, status_code=200 if ready else 503, headers={} if ready else {"retry-after": "1"}
    )


class MetricsPage:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def page(self, request: Request) -> Response:
        body, kind = self._metrics.render()
        return Response(body, headers={"content-type": kind})
