from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from gateway.observe.prometheus.families import SampledGauge


def a_gauge(
    *, space: list[bool] | None = None, may_remove: bool = True
) -> tuple[SampledGauge, CollectorRegistry]:
    registry = CollectorRegistry()
    metric = Gauge("up", "x", ["name"], registry=registry)
    left = space if space is not None else [True]
    return SampledGauge(metric, has_space=lambda: left[0], may_remove=may_remove, absent=1.0), registry


def told(registry: CollectorRegistry) -> dict[str, float]:
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}


@pytest.mark.parametrize("may_remove", [True, False])
def test_what_is_gone_is_removed_or_tells_that_nothing_is_wrong(may_remove: bool) -> None:
    gauge, registry = a_gauge(may_remove=may_remove)
    gauge.sample({("a",): 0.0, ("b",): 1.0})
    assert told(registry) == {"a": 0.0, "b": 1.0}
    gauge.sample({("b",): 0.0})
    assert told(registry) == ({"b": 0.0} if may_remove else {"a": 1.0, "b": 0.0})
    gauge.sample({("a",): 0.0})
    assert told(registry)["a"] == 0.0


def test_on_a_full_disk_what_is_new_is_left_out() -> None:
    space = [True]
    gauge, registry = a_gauge(space=space)
    gauge.sample({("a",): 1.0})
    space[0] = False
    gauge.sample({("a",): 0.0, ("b",): 1.0})
    assert told(registry) == {"a": 0.0}
    space[0] = True
    gauge.sample({("a",): 0.0, ("b",): 1.0})
    assert told(registry) == {"a": 0.0, "b": 1.0}
