"""What the gateway counts and times, in Prometheus's form."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from gateway.observe.metric_buffers import Buffered, BufferedCounter, BufferedHistogram, Family
from gateway.observe.metric_files import FOLDER, MetricFiles

Collected = Counter | Gauge | Histogram

SAMPLES_AT_ONCE = 100
"""Rendered without a pause: about a millisecond."""
KIND = CONTENT_TYPE_LATEST
"""The type of what ``render`` returns."""

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_LOOKS = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_SCANS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class _Families:
    """Makes the metrics of one registry."""

    def __init__(self, registry: CollectorRegistry, changed: list[Buffered]) -> None:
        self._registry = registry
        self._changed = changed
        self.made: list[Collected] = []
        files = MetricFiles.of_this_process()
        self._has_space = files.allocate if files is not None else lambda: True
        self._has_space()
        self._may_remove = files is None  # prometheus_client cannot remove from its files

    def counter(self, name: str, about: str, labels: list[str]) -> Family[BufferedCounter]:
        return self._counts(Counter(name, about, labels, registry=self._registry), remove_idle=True)

    def gauge(self, name: str, about: str, labels: list[str]) -> Family[BufferedCounter]:
        return self._counts(Gauge(name, about, labels, registry=self._registry, multiprocess_mode="livesum"))

    def histogram(
        self, name: str, about: str, labels: list[str], buckets: tuple[float, ...]
    ) -> Family[BufferedHistogram]:
        metric = Histogram(name, about, labels, buckets=buckets, registry=self._registry)
        self.made.append(metric)
        return Family(
            lambda values: BufferedHistogram(metric.labels(*values), self._changed),
            dropped=BufferedHistogram(None, self._changed),
            has_space=self._has_space,
            remove=metric.remove if self._may_remove else None,
        )

    def _counts(self, metric: Counter | Gauge, *, remove_idle: bool = False) -> Family[BufferedCounter]:
        self.made.append(metric)
        return Family(
            lambda values: BufferedCounter(metric.labels(*values), self._changed),
            dropped=BufferedCounter(None, self._changed),
            has_space=self._has_space,
            remove=metric.remove if remove_idle and self._may_remove else None,
        )


class Metrics:
    """One worker's metrics. With ``PROMETHEUS_MULTIPROC_DIR`` set they are also in a folder, with those of all
    workers."""

    def __init__(self, *, tenants: bool = False) -> None:
        """``tenants``: label metrics with tenants' names."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # half the lines; resets are found without them
        self._tenants = tenants
        self._registry = CollectorRegistry()
        here = self._registry
        self._changed: list[Buffered] = []
        make = _Families(here, self._changed)
        self.http = make.counter(
            "tollgate_http_requests_total",
            "HTTP requests by route and status.",
            ["route", "status"],
        )
        self.requests = make.counter(
            "tollgate_requests_total",
            "Model requests by public model name, backend and outcome (an HTTP status; 499 is a client that left).",
            ["model", "backend", "status"],
        )
        self.seconds = make.histogram(
            "tollgate_request_seconds",
            "From arrival to the end of the answer.",
            ["model"],
            _SECONDS,
        )
        self.first_token = make.histogram(
            "tollgate_time_to_first_token_seconds",
            "From arrival to the first chunk, of answers that no cache gave.",
            ["model"],
            _SECONDS,
        )
        self.inter_token = make.histogram(
            "tollgate_inter_token_seconds",
            "Between the chunks of one answer that no cache gave; those that came together count as one.",
            ["model"],
            _GAPS,
        )
        self.dispatch_seconds = make.histogram(
            "tollgate_dispatch_seconds",
            "From arrival until the request was sent to a backend: guards, queue and failed attempts included.",
            ["model"],
            _SECONDS,
        )
        self.queue_seconds = make.histogram(
            "tollgate_queue_seconds",
            "Wait in a backend's queue, 0 where there was a free slot; those that gave up waiting included.",
            ["backend", "tier"],
            _SECONDS,
        )
        self.tokens = make.counter(
            "tollgate_tokens_total",
            "Tokens that were spent, by what for: as the backends counted them, or the gateway where they did not.",
            ["model", "direction", "purpose"],
        )
        self.in_flight = make.gauge(
            "tollgate_requests_in_flight",
            "Requests in progress: waiting for their first chunk, or running since.",
            ["model", "state"],
        )
        self.shed = make.counter(
            "tollgate_shed_total",
            "Requests that were not admitted, by the caller's tier and the reason.",
            ["tier", "reason"],
        )
        self.pool_in_flight = make.gauge(
            "tollgate_backend_requests_in_flight",
            "Requests in flight at a backend.",
            ["backend"],
        )
        self.pool_waiting = make.gauge(
            "tollgate_backend_requests_waiting",
            "Requests waiting in a backend's queue.",
            ["backend"],
        )
        self.attempts = make.counter(
            "tollgate_attempts_total",
            "Tries of a backend, by how they ended: ok, or an error's code.",
            ["backend", "outcome"],
        )
        self.upstream_errors = make.counter(
            "tollgate_upstream_errors_total",
            "Failures of a backend by class: 4xx, 5xx, timeout, unreachable, or broken (cut, empty, garbled).",
            ["backend", "class"],
        )
        self.breaker_open = make.gauge(
            "tollgate_breaker_open",
            "Breakers that are open: of each worker, model, and key, tenant or everybody.",
            ["backend"],
        )
        self.credentials_refused = make.gauge(
            "tollgate_credentials_refused",
            "Workers whose last request to some model of a backend ended in 401, 402 or 403.",
            ["backend"],
        )
        self.refused = make.counter(
            "tollgate_refused_requests_total",
            "Requests that the gateway refused before it asked a model, by tenant (where it is a label) and reason.",
            ["tenant", "reason"],
        )
        self.shadow = make.counter(
            "tollgate_shadow_requests_total",
            "Copies sent to a shadow model, by outcome (an HTTP status).",
            ["model", "status"],
        )
        self.cost = make.counter(
            "tollgate_cost_dollars_total",
            "US dollars by the price table, by what for.",
            ["tenant", "model", "purpose"],
        )
        self.loop_lag = Histogram(
            "tollgate_event_loop_lag_seconds",
            "By how much a timer of a worker's event loop came late.",
            buckets=_LAGS,
            registry=here,
        )
        self.cache = make.counter(
            "tollgate_cache_requests_total",
            "What each cache (exact, semantic) did for a request: hit, miss, bypass, shared …; kept, or why not.",
            ["cache", "result"],
        )
        self.cache_seconds = make.histogram(
            "tollgate_cache_seconds",
            "To look for an answer, in the exact or the semantic cache.",
            ["cache"],
            _LOOKS,
        )
        self.guard_scans = make.counter(
            "tollgate_guard_scans_total",
            "Scans of texts: clean, found, open (left to the next check), or unscanned.",
            ["guard", "check", "outcome"],
        )
        self.guard_seconds = make.histogram(
            "tollgate_guard_scan_seconds",
            "How long a scan took.",
            ["guard", "check"],
            _SCANS,
        )
        self.guard_hits = make.counter(
            "tollgate_guard_hits_total",
            "What guards found and acted on.",
            ["guard", "direction", "action"],
        )
        self.guard_unscanned = make.counter(
            "tollgate_guard_unscanned_total",
            "Texts that could not be judged.",
            ["guard", "direction"],
        )
        self.guard_reviews = make.counter(
            "tollgate_guard_reviews_total",
            "Findings of guards that only flag, for review: written, skipped (by request, not sampled), or lost.",
            ["guard", "outcome"],
        )
        self.guard_streams = make.counter(
            "tollgate_guard_answers_total",
            "Answers that a guard looked after; with the cuts, the abort rate.",
            ["guard"],
        )
        self.guard_cuts = make.counter(
            "tollgate_guard_cuts_total",
            "Answers that a guard cut.",
            ["guard"],
        )
        self.guard_time_to_cut = make.histogram(
            "tollgate_guard_time_to_cut_seconds",
            "From the arrival of the first unsafe character to the cut.",
            ["guard"],
            _GAPS,
        )
        self.guard_leaked = make.counter(
            "tollgate_guard_leaked_characters_total",
            "Characters that had been sent, from the first unsafe one on, when an answer was cut.",
            ["guard"],
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
        self._collected = [*make.made, self.loop_lag, self.policy_generation, self.policy_errors]

    def observe_lag(self, late: float) -> None:
        """A timer of the event loop was ``late`` by so many seconds. Flushes all metrics."""
        self.loop_lag.observe(late)
        self.flush()

    def flush(self) -> None:
        for one in self._changed:
            one.flush()
        self._changed.clear()

    def tenant(self, name: str) -> str:
        """The value of the label ``tenant``: empty, unless the operator enables it."""
        return name if self._tenants else ""

    @property
    def folder(self) -> Path | None:
        """The folder of all workers' metrics; None where there is only one."""
        folder = os.environ.get(FOLDER)
        return Path(folder) if folder else None

    def render(self) -> bytes:
        """All metrics as text. Those of other workers are as of their last flush."""
        if self.folder is None:
            return b"".join(self.slices())
        self.flush()
        return render_shared(self.folder)

    def slices(self) -> Iterator[bytes]:
        """This worker's metrics as text, in parts that each take about a millisecond to render."""
        self.flush()
        for collected in self._collected:
            yield from _slices(collected)


class _One:
    """A collector of one metric's samples."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> list[Metric]:
        return [self._metric]


def _slices(collected: Collected) -> Iterator[bytes]:
    samples = iter(collected._samples())
    is_first = True
    while True:
        metric = collected._get_metric()  # type: ignore[no-untyped-call]
        for suffix, *sample in islice(samples, SAMPLES_AT_ONCE):
            metric.add_sample(collected._name + suffix, *sample)
        if is_first:
            yield generate_latest(_One(metric))
        elif metric.samples:
            _help, _type, text = generate_latest(_One(metric)).split(b"\n", 2)
            yield text
        if len(metric.samples) < SAMPLES_AT_ONCE:
            return
        is_first = False


def render_shared(folder: Path) -> bytes:
    """The metrics of all workers, added up."""
    _remove_dead_gauges(folder)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def _remove_dead_gauges(folder: Path) -> None:
    """A worker that was killed has nothing in flight, whatever its last gauges say."""
    for file in folder.glob("gauge_live*_*.db"):
        pid = file.stem.rpartition("_")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            file.unlink(missing_ok=True)
