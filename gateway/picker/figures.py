"""What an endpoint picker tells Prometheus, and its log of engines that fail."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.errors import GatewayError, Overloaded
from gateway.picker.pool import EnginePool

log = logging.getLogger("gateway.backends")

_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Figures:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.streams = Gauge(
            "tollgate_epp_streams", "Requests that gateways tell of now.", registry=self.registry
        )
        self._picks = Counter(
            "tollgate_epp_picks",
            "Requests for which an engine was picked.",
            ("model",),
            registry=self.registry,
        )
        self._refused = Counter(
            "tollgate_epp_refused",
            "Requests that were answered in the gateway's stead, by the code that their callers have.",
            ("code",),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "tollgate_epp_pick_seconds",
            "From the body's end to the engine that was picked, waits for a place included.",
            registry=self.registry,
            buckets=_SECONDS,
        )

    def picked(self, model: str, seconds: float) -> None:
        self._picks.labels(model).inc()
        self._seconds.observe(seconds)

    def refused(self, error: GatewayError) -> None:
        """Codes are our own: there are as many as errors."""
        self._refused.labels(error.code or str(error.status)).inc()
        level = logging.INFO if isinstance(error, Overloaded) or error.status < 500 else logging.WARNING
        log.log(level, "no engine was picked: %s", error.message)

    def show(self, pool: EnginePool) -> None:
        """Its engines, as they are when they are asked for."""
        self.registry.register(_Engines(pool))


class _Engines(Collector):
    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        load = GaugeMetricFamily(
            "tollgate_epp_requests_in_flight", "At this engine, by this picker.", labels=["endpoint"]
        )
        full = GaugeMetricFamily(
            "tollgate_epp_engine_saturation", "How full it is: 0 is idle, 1 is full.", labels=["endpoint"]
        )
        connected = GaugeMetricFamily(
            "tollgate_epp_kv_events_connected", "1 where a server's KV events come.", labels=["backend"]
        )
        blocks = GaugeMetricFamily(
            "tollgate_epp_kv_blocks_held", "That a server holds by its events.", labels=["backend"]
        )
        asked = CounterMetricFamily(
            "tollgate_epp_prompt_ids", "Questions for the token ids of a prompt.", labels=["outcome"]
        )
        for name, told in self._pool.held.figures.items():
            connected.add_metric([name], told.connected)
            blocks.add_metric([name], told.blocks)
        for outcome, count in self._pool.held.outcomes.items():
            asked.add_metric([outcome], count)
        standing = self._pool.standing
        for name, endpoint in standing.endpoints.items() if standing is not None else ():
            load.add_metric([endpoint], self._pool.pools.load(name))
            full.add_metric([endpoint], self._pool.pools.saturation(name))
        yield from (load, full, connected, blocks, asked)


class FailureLog:
    """Called by ``gateway.fallback.health``."""

    def breaker_opened(
        self,
        backend: str,
        model: str,
        tenant: str | None,
        key_id: str | None,
        failures: int,
        cooldown: float,
    ) -> None:
        whose = f" for {tenant}" if tenant else ""
        log.warning(
            "'%s' failed %d times of late (asked for '%s') and is not picked%s for %g s",
            *(backend, failures, model, whose, cooldown),
        )

    def breaker_closed(self, backend: str, model: str, tenant: str | None, key_id: str | None) -> None:
        log.info("'%s' is picked again (asked for '%s')", backend, model)

    def credentials_refused(self, backend: str, model: str, error: str) -> None:
        """A picker sends nothing itself."""

    def credentials_accepted(self, backend: str) -> None:
        """The same."""
