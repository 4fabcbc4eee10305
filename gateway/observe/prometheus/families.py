"""Makes the metrics of one worker's registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.observe.prometheus.buffers import BufferedChild, BufferedCounter, BufferedHistogram, Family
from gateway.observe.prometheus.files import MetricFiles
from gateway.observe.prometheus.model_labels import ModelLabels

Collected = Counter | Gauge | Histogram
Merged = Literal["livemin", "livemax", "livesum"]
"""How a gauge's values of several workers become one."""
_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)
_Child = TypeVar("_Child", bound=BufferedChild)


class Families:
    """Makes the metrics of one registry."""

    def __init__(self, registry: CollectorRegistry, models: ModelLabels) -> None:
        """``models``: what the label ``model`` says."""
        self._registry = registry
        self._models = models
        self.made: list[Collected] = []
        self.buffered: list[Family[BufferedCounter] | Family[BufferedHistogram] | BufferedHistogram] = []
        files = MetricFiles.of_this_process()
        self._has_space = files.allocate if files is not None else lambda: True
        self._has_space()
        self._may_remove = files is None  # prometheus_client cannot remove from its files

    def counter(self, name: str, about: str, labels: list[str]) -> Family[BufferedCounter]:
        metric = self._made(Counter(name, about, labels, registry=self._registry))
        family = self._family(metric, BufferedCounter, labels, remove_idle=True)
        self.buffered.append(family)
        return family

    def gauge(self, name: str, about: str, labels: list[str]) -> Family[BufferedCounter]:
        """Counted up and down."""
        metric = self._made(Gauge(name, about, labels, registry=self._registry, multiprocess_mode="livesum"))
        family = self._family(metric, BufferedCounter, labels, remove_idle=False)
        self.buffered.append(family)
        return family

    def histogram(
        self, name: str, about: str, labels: list[str], buckets: tuple[float, ...]
    ) -> Family[BufferedHistogram]:
        metric = self._made(Histogram(name, about, labels, buckets=buckets, registry=self._registry))
        family = self._family(metric, BufferedHistogram, labels, remove_idle=True)
        self.buffered.append(family)
        return family

    def sampled(
        self, name: str, about: str, labels: list[str], *, mode: Merged, absent: float
    ) -> SampledGauge:
        metric = self._made(Gauge(name, about, labels, registry=self._registry, multiprocess_mode=mode))
        return SampledGauge(metric, has_space=self._has_space, may_remove=self._may_remove, absent=absent)

    def plain_counter(self, name: str, about: str) -> Counter:
        """Without labels, and not buffered."""
        return self._made(Counter(name, about, registry=self._registry))

    def plain_gauge(self, name: str, about: str, *, mode: Merged) -> Gauge:
        return self._made(Gauge(name, about, registry=self._registry, multiprocess_mode=mode))

    def plain_histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> BufferedHistogram:
        """Without labels."""
        metric = self._made(Histogram(name, about, buckets=buckets, registry=self._registry))
        buffered = BufferedHistogram(metric)
        self.buffered.append(buffered)
        return buffered

    def _made(self, metric: _Metric) -> _Metric:
        self.made.append(metric)
        return metric

    def _family(
        self,
        metric: _Metric,
        child: Callable[[_Metric | None], _Child],
        labels: Sequence[str],
        *,
        remove_idle: bool,
    ) -> Family[_Child]:
        return Family(
            lambda values: child(metric.labels(*values)),
            dropped=child(None),
            has_space=self._has_space,
            remove=metric.remove if remove_idle and self._may_remove else None,
            shared=self._shared(labels),
        )

    def _shared(self, labels: Sequence[str]) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
        if "model" not in labels:
            return lambda values: values
        place: int = labels.index("model")
        return lambda values: (*values[:place], self._models.of(values[place]), *values[place + 1 :])


class SampledGauge:
    """Not counted up and down but looked at now and then, all sets of labels at once.

    ``absent`` is the value of a set of labels that is gone: files that workers share keep their lines for ever.
    """

    def __init__(
        self, metric: Gauge, *, has_space: Callable[[], bool], may_remove: bool, absent: float
    ) -> None:
        self._metric = metric
        self._has_space = has_space
        self._may_remove = may_remove
        self._absent = absent
        self._told: dict[tuple[str, ...], float] = {}

    def sample(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Set these, by the values of their labels, and no others. Most are as they were, and cost nothing."""
        for labels in self._told.keys() - values.keys():
            if self._may_remove:
                self._metric.remove(*labels)
                del self._told[labels]
            else:
                self._set(labels, self._absent)
        for labels, value in values.items():
            self._set(labels, value)

    def _set(self, labels: tuple[str, ...], value: float) -> None:
        if self._told.get(labels) != value and (labels in self._told or self._has_space()):
            self._metric.labels(*labels).set(value)
            self._told[labels] = value
