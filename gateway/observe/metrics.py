"""What the gateway counts and times, in Prometheus's form."""

from __future__ import annotations

import os
from pathlib import Path

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Metrics:
    """One worker's figures. With ``PROMETHEUS_MULTIPROC_DIR`` set, ``render`` adds up those of all workers."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        here = self._registry
        self.http = Counter(
            "tollgate_http_requests_total",
            "HTTP requests by route and status.",
            ["route", "status"],
            registry=here,
        )
        self.requests = Counter(
            "tollgate_requests_total",
            "Model requests by public model name, backend and outcome (an HTTP status; 499 is a client that left).",
            ["model", "backend", "status"],
            registry=here,
        )
        self.seconds = Histogram(
            "tollgate_request_seconds",
            "From arrival to the end of the answer.",
            ["model"],
            buckets=_SECONDS,
            registry=here,
        )
        self.first_token = Histogram(
            "tollgate_time_to_first_token_seconds",
            "From arrival to the first chunk.",
            ["model"],
            buckets=_SECONDS,
            registry=here,
        )
        self.inter_token = Histogram(
            "tollgate_inter_token_seconds",
            "Between the chunks of one answer; those that came together count as one.",
            ["model"],
            buckets=_GAPS,
            registry=here,
        )
        self.queue = Histogram(
            "tollgate_queue_seconds",
            "From arrival until a backend was given the request.",
            ["model"],
            buckets=_SECONDS,
            registry=here,
        )
        self.tokens = Counter(
            "tollgate_tokens_total",
            "Tokens as the backends counted them.",
            ["model", "direction"],
            registry=here,
        )
        self.in_flight = Gauge(
            "tollgate_requests_in_flight",
            "Requests in progress: waiting for their first chunk, or running since.",
            ["model", "state"],
            registry=here,
            multiprocess_mode="livesum",
        )
        self.shed = Counter(
            "tollgate_shed_total",
            "Requests that were not admitted, by the caller's tier and the reason.",
            ["tier", "reason"],
            registry=here,
        )
        self.pool_in_flight = Gauge(
            "tollgate_backend_requests_in_flight",
            "Requests under way at a backend.",
            ["backend"],
            registry=here,
            multiprocess_mode="livesum",
        )
        self.pool_waiting = Gauge(
            "tollgate_backend_requests_waiting",
            "Requests that wait for a place at a backend.",
            ["backend"],
            registry=here,
            multiprocess_mode="livesum",
        )
        self.attempts = Counter(
            "tollgate_attempts_total",
            "Tries of a backend, by how they ended: ok, or an error's code.",
            ["backend", "outcome"],
            registry=here,
        )
        self.shadow = Counter(
            "tollgate_shadow_requests_total",
            "Copies sent to a shadow model, by outcome (an HTTP status).",
            ["model", "status"],
            registry=here,
        )
        self.cost = Counter(
            "tollgate_cost_dollars_total",
            "US dollars by the price table.",
            ["tenant", "model"],
            registry=here,
        )
        self.policy_generation = Gauge(
            "tollgate_policy_generation",
            "How many policies this worker has taken up; it grows with each good edit.",
            registry=here,
            multiprocess_mode="livemin",
        )
        self.policy_errors = Counter(
            "tollgate_policy_errors_total",
            "Policy edits that were refused; the last good one stays.",
            registry=here,
        )

    def render(self) -> tuple[bytes, str]:
        """The figures as text, and the text's content type."""
        registry = self._registry
        folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        if folder:
            _forget_the_dead(Path(folder))
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry), CONTENT_TYPE_LATEST


def _forget_the_dead(folder: Path) -> None:
    """A worker that was killed has nothing in flight, whatever its last figures say."""
    for file in folder.glob("gauge_live*_*.db"):
        pid = file.stem.rpartition("_")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            file.unlink(missing_ok=True)
