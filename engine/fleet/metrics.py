"""Figures of several models for Prometheus: read off the keeper when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine.fleet.keeper import Keeper
from engine.fleet.model import State

_P = "tollgate_engine_"


class FleetMetrics:
    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing that must be known before it is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        models = self._keeper.models.values()
        state = GaugeMetricFamily(
            _P + "model_state", "1 for the state that the model is in", labels=["model", "state"]
        )
        for model in models:
            for one in State:
                state.add_metric([model.name, one.value], float(model.state is one))
        yield state
        for name, about, value in (
            ("model_memory_bytes", "Memory of the model's processes", lambda model: model.held),
            ("model_need_bytes", "Memory that the model takes when it is loaded", lambda model: model.need),
            ("model_in_flight", "Requests at the model", lambda model: model.in_flight),
            (
                "model_waiting",
                "Requests that wait until the model is loaded",
                lambda model: len(model.waiting),
            ),
        ):
            gauge = GaugeMetricFamily(_P + name, about, labels=["model"])
            for model in models:
                gauge.add_metric([model.name], value(model))
            yield gauge
        for name, about, value in (
            ("model_loads", "How often the model became loaded", lambda model: model.loads),
            ("model_deaths", "How often its processes died", lambda model: model.deaths),
        ):
            counter = CounterMetricFamily(_P + name, about, labels=["model"])
            for model in models:
                counter.add_metric([model.name], value(model))
            yield counter
        yield CounterMetricFamily(
            _P + "model_swaps", "Models that gave way to another", value=self._keeper.swaps
        )
        yield GaugeMetricFamily(
            _P + "memory_budget_bytes", "What all processes may take", value=self._keeper.budget.total
        )
        yield GaugeMetricFamily(
            _P + "fleet_memory_bytes", "Memory of the process itself", value=self._keeper.budget.own
        )
