"""KEDA's external scaler protocol over gRPC (keda.sh/docs/latest/concepts/external-scalers)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
from grpc import aio

from gateway.scaler import history
from gateway.scaler.figures import NoFigures, Reader
from gateway.scaler.history import History
from gateway.scaler.messages import SERVICE, methods
from gateway.scaler.target import BadMetadata, Target
from gateway.scaler.watcher import Watcher, per_engine

log = logging.getLogger(__name__)

SAVE_EVERY = 300.0
MOST_TARGETS = 100
"""Triggers that are followed: more is a mistake, or somebody who means ill."""
FORGOTTEN = 3600.0
"""Seconds after which a trigger that KEDA asks nothing of is followed no longer: it was edited, or deleted."""


class Service:
    """Follows each trigger of each ScaledObject, from the first time that KEDA asks for it."""

    def __init__(self, token: str, state: Path | None, every: float) -> None:
        """``token`` is of the gateways' metrics, which are read ``every`` seconds. ``state`` keeps what demand was.

        One that is damaged is put aside: engines are to be scaled all the same. Raises ``OSError``.
        """
        self._state, self._every = state, every
        self._known = _kept(state) if state is not None else {}
        self._http = httpx.AsyncClient(trust_env=False)
        self._reader = Reader(self._http, token)
        self._watchers: dict[tuple[str, str, Target], tuple[Watcher, asyncio.Task[None]]] = {}
        self._messages = {method.name: method for method in methods()}
        self._saving = asyncio.get_running_loop().create_task(self._save_often())

    def add_to(self, server: aio.Server) -> None:
        answers: dict[str, Callable[..., Any]] = {
            "IsActive": self._is_active,
            "StreamIsActive": self._stream_is_active,
            "GetMetricSpec": self._get_metric_spec,
            "GetMetrics": self._get_metrics,
        }
        handlers = {
            name: (
                grpc.unary_stream_rpc_method_handler
                if method.streams
                else grpc.unary_unary_rpc_method_handler
            )(
                answers[name],
                request_deserializer=method.request.FromString,
                response_serializer=method.response.SerializeToString,
            )
            for name, method in self._messages.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def aclose(self) -> None:
        tasks = [self._saving, *(task for _, task in self._watchers.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._save()
        await self._http.aclose()

    async def _is_active(self, reference: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        watcher = await self._watcher(reference, context)
        async with _told(context):
            return self._messages["IsActive"].response(result=watcher.active())

    async def _stream_is_active(
        self, reference: Any, context: aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Any]:
        watcher = await self._watcher(reference, context)
        before: bool | None = None
        while True:
            now: bool | None
            try:
                now = watcher.active()
            except NoFigures:  # KEDA asks the other methods, too, and hears it there
                now = before
            if now is not None and now != before:
                before = now
                yield self._messages["StreamIsActive"].response(result=now)
            async with watcher.changed:
                await watcher.changed.wait()
            watcher.asked_at = time.monotonic()

    async def _get_metric_spec(self, reference: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        watcher = await self._watcher(reference, context)
        return self._messages["GetMetricSpec"].response(
            metricSpecs=[
                # The whole number is for KEDA before 2.15.
                {"metricName": name, "targetSizeFloat": target, "targetSize": max(1, round(target))}
                for name, target in per_engine(watcher.target).items()
            ]
        )

    async def _get_metrics(self, request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        watcher = await self._watcher(request.scaledObjectRef, context)
        async with _told(context):
            values = watcher.metrics()
        if request.metricName not in values:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"there is no metric '{request.metricName}', but {', '.join(values)}",
            )
        value = values[request.metricName]
        return self._messages["GetMetrics"].response(
            metricValues=[
                {"metricName": request.metricName, "metricValueFloat": value, "metricValue": round(value)}
            ]
        )

    async def _watcher(self, reference: Any, context: aio.ServicerContext[Any, Any]) -> Watcher:
        """With figures, or the reason why there are none."""
        try:
            target = Target.read(dict(reference.scalerMetadata))
        except BadMetadata as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        key = reference.namespace, reference.name, target
        if key not in self._watchers:
            self._forget()
            if len(self._watchers) >= MOST_TARGETS:
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MOST_TARGETS} triggers are followed already"
                )
            name = f"{reference.namespace}/{reference.name}"
            # Demand is the backend's, whatever else was changed.
            kept = self._known.setdefault(f"{name} {target.backend}", History())
            new = Watcher(name, target, self._reader, kept, every=self._every)
            self._watchers[key] = new, asyncio.get_running_loop().create_task(new.run())
        watcher, _ = self._watchers[key]
        watcher.asked_at = time.monotonic()
        await watcher.begun.wait()
        return watcher

    def _forget(self) -> None:
        """What was asked for long ago."""
        late = time.monotonic() - FORGOTTEN
        for key, (watcher, task) in [*self._watchers.items()]:
            if watcher.asked_at < late:
                task.cancel()
                del self._watchers[key]

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY)
            self._forget()
            self._save()

    def _save(self) -> None:
        if self._state is None:
            return
        new = self._state.with_name(self._state.name + ".new")
        try:
            new.write_bytes(history.dumps([*self._known.items()]))
            new.replace(self._state)
        except OSError as error:
            log.error("what demand was cannot be kept: %s", error)


def _kept(state: Path) -> dict[str, History]:
    """Raises ``OSError``."""
    try:
        return history.loads(state.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        aside = state.with_name(state.name + ".damaged")
        state.replace(aside)
        log.error("%s cannot be read (%s): it was put aside as %s, and begins anew", state, error, aside.name)
        return {}


@asynccontextmanager
async def _told(context: aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Answers that figures are missing, and why, where they are asked for."""
    try:
        yield
    except NoFigures as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
