"""Makes the metrics of one worker's registry."""

from __future__ import annotations

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.observe.metric_buffers import BufferedCounter, BufferedHistogram, Family
from gateway.observe.metric_files import MetricFiles
from gateway.observe.sampled_gauge import SampledGauge

Collected = Counter | Gauge | Histogram


class Families:
    """Makes the metrics of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.made: list[Collected] = []
        self.buffered: list[Family[BufferedCounter] | Family[BufferedHistogram]] = []
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
        family = Family(
            lambda values: BufferedHistogram(metric.labels(*values)),
            dropped=BufferedHistogram(None),
            has_space=self._has_space,
            remove=metric.remove if self._may_remove else None,
        )
        self.buffered.append(family)
        return family

    def sampled(
        self,
        name: str,
        about: str,
        labels: list[str],
        *,
        mode: Literal["livemin", "livemax", "livesum"],
        absent: float,
    ) -> SampledGauge:
        """``mode`` merges several workers' values."""
        metric = Gauge(name, about, labels, registry=self._registry, multiprocess_mode=mode)
        self.made.append(metric)
        return SampledGauge(metric, has_space=self._has_space, may_remove=self._may_remove, absent=absent)

    def plain_counter(self, name: str, about: str) -> Counter:
        """Without labels, and not buffered."""
        metric = Counter(name, about, registry=self._registry)
        self.made.append(metric)
        return metric

    def plain_gauge(self, name: str, about: str, *, mode: Literal["livemin", "livemax", "livesum"]) -> Gauge:
        metric = Gauge(name, about, registry=self._registry, multiprocess_mode=mode)
        self.made.append(metric)
        return metric

    def _counts(self, metric: Counter | Gauge, *, remove_idle: bool = False) -> Family[BufferedCounter]:
        self.made.append(metric)
        family = Family(
            lambda values: BufferedCounter(metric.labels(*values)),
            dropped=BufferedCounter(None),
            has_space=self._has_space,
            remove=metric.remove if remove_idle and self._may_remove else None,
        )
        self.buffered.append(family)
        return family
