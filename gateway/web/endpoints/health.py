"""``/healthz``: the process is alive. ``/readyz``: it can serve, proven by work. ``/metrics``: its metrics.

Whether it is alive and ready is public; names of backends and all metrics are for the operator.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.backends.readiness import ReadinessReport
from gateway.children.process_pool import ProcessDied, ProcessPool
from gateway.errors import Overloaded, UnknownModel
from gateway.observe.metrics import Metrics
from gateway.observe.prometheus.rendering import KIND, render_shared
from gateway.web.context import RequestContext
from gateway.web.operator_token import OperatorToken

PATIENCE = 10.0
"""Seconds in which the metrics of all workers can be summed up."""


async def healthz(request: Request) -> Response:
    return JSONResponse({"status": "alive"})


class ReadyPage:
    """``draining`` exists once the gateway is to stop (``gateway.process.run``)."""

    def __init__(self, draining: Path | None, operator: OperatorToken) -> None:
        self._draining = draining
        self._operator = operator

    async def page(self, request: Request) -> Response:
        """200 when everything that this gateway runs itself can serve: an engine has decoded a token, and every guard
        that refuses requests without its model has it loaded. The state of providers is shown, and changes nothing.

        The operator may ask for one public model, ``?model=NAME``: whether any backend can serve it. Raises
        ``UnknownModel``.
        """
        if self._draining is not None and self._draining.exists():
            return _not_ready({"status": "stopping"}, 1.0)
        runtime = RequestContext.of(request.scope).runtime
        report = await runtime.readiness.report()
        is_operator = self._operator.matches(request.scope)
        ready = report.ready
        if is_operator and (name := request.query_params.get("model")) is not None:
            model = runtime.policy.resolve(name)
            if model is None:
                raise UnknownModel(f"The model '{name}' does not exist.", param="model")
            ready = report.serves(model)
        body: dict[str, object] = {"status": "ready" if ready else "not ready"}
        if is_operator:
            body |= _details(report)
        return JSONResponse(body) if ready else _not_ready(body, report.retry_after)


def _details(report: ReadinessReport) -> dict[str, object]:
    return {
        "backends": {
            **{name: reason or "ready" for name, reason in report.reasons.items()},
            **{name: f"disabled: {reason}" for name, reason in report.disabled.items()},
        },
        "models": {name: reason or "ready" for name, reason in report.models.items()},
        **({"waits_for": report.waits_for} if report.waits_for else {}),
        **({"guards": dict(report.guards)} if report.guards else {}),
        **({"store": report.store} if report.store else {}),
        **({"extras": dict(report.extras)} if report.extras else {}),
    }


def _not_ready(body: Mapping[str, object], retry_after: float) -> Response:
    return JSONResponse(body, status_code=503, headers={"retry-after": str(math.ceil(retry_after))})


class MetricsPage:
    """However often it is asked for, it is written at most once in ``age`` seconds, and one at a time."""

    def __init__(self, metrics: Metrics, pool: ProcessPool, operator: OperatorToken, *, age: float) -> None:
        self._age = age
        self._metrics = metrics
        self._pool = pool
        self._operator = operator
        self._writing = asyncio.Lock()
        self._written = -math.inf
        self._page = b""

    async def page(self, request: Request) -> Response:
        self._operator.require(request.scope)
        async with self._writing:
            if time.monotonic() - self._written >= self._age:
                self._page = await self._render()
                self._written = time.monotonic()
        return Response(self._page, headers={"content-type": KIND})

    async def _render(self) -> bytes:
        """There may be many thousands: one worker's are rendered with pauses, several workers' in another process."""
        folder = self._metrics.folder
        if folder is None:
            parts = []
            for part in self._metrics.slices():
                parts.append(part)
                await asyncio.sleep(0)
            return b"".join(parts)
        self._metrics.flush()
        try:
            return await self._pool.run("", PATIENCE, render_shared, folder)
        except (TimeoutError, ProcessDied):
            raise Overloaded("The figures could not be added up. Try again.", retry_after=1.0) from None
