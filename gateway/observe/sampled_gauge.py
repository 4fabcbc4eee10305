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
