"""Who asks servers for their load, and where what they say goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from gateway.admission.pools import Pools
from gateway.backends.engine_poller import EnginePoller
from gateway.backends.metrics_poller import NAMES, MetricsPoller
from gateway.engine_load import EngineLoad
from gateway.fallback.health import HealthRegistry
from gateway.policy import schema
from gateway.routing.score import Scores


def is_polled(config: schema.Backend) -> bool:
    if isinstance(config, schema.Replicated) and config.replicas is not None:
        return False  # its replicas are
    return isinstance(config, schema.EngineBackend) or (
        isinstance(config, schema.OpenAIBackend) and config.telemetry is not None
    )


def build_poller(
    name: str,
    config: schema.Backend,
    transport: httpx.AsyncBaseTransport,
    pools: Pools,
    health: HealthRegistry,
    scores: Scores,
    on_state: Callable[[dict[str, Any]], object] | None = None,
) -> EnginePoller:
    """One that has begun, of a backend that ``is_polled``. ``transport`` becomes its own."""

    def told(figures: EngineLoad) -> None:
        scores.told(name, figures)
        pools.update_engine(name, figures)

    if isinstance(config, schema.OpenAIBackend) and config.telemetry is not None:
        names = NAMES[config.telemetry]
        return MetricsPoller(config.base_url, transport, told, names=names, interval=1.0).start()
    return EnginePoller(
        getattr(config, "base_url", ""),
        transport,
        told,
        on_state=on_state,
        on_return=lambda: health.recovered(name),
        on_model=lambda model: health.recovered(name, model),
    ).start()
