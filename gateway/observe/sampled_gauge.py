"""Gauges that are not counted up and down but looked at now and then, all sets of labels at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import Gauge


class SampledGauge:
    """``absent`` is the value of a set of labels that is gone: files that workers share keep their lines for ever."""

    def __init__(
        self, metric: Gauge, *, has_space: Callable[[], bool], may_remove: bool, absent: float
    ) -> None:
        self._metric = metric
        self._has_space = has_space
        self._may_remove = may_remove
        self._absent = absent
        self._known: set[tuple[str, ...]] = set()

    def sample(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Set these, by the values of their labels, and no others."""
        for labels in self._known - values.keys():
            if self._may_remove:
                self._metric.remove(*labels)
                self._known.discard(labels)
            else:
                self._metric.labels(*labels).set(self._absent)
        for labels, value in values.items():
            if labels in self._known or self._has_space():
                self._metric.labels(*labels).set(value)
                self._known.add(labels)
