from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

from gateway.observe.metrics import FLUSH_EVERY, Metrics
from gateway.observe.prometheus.buffers import BufferedCounter, BufferedHistogram, Family

BOUNDS = (0.1, 0.5, 2.0)


@given(st.lists(st.one_of(st.sampled_from([0.0, 0.1, 0.5, 2.0, 1e9, None]), st.floats(0, 5))))
def test_times_are_what_prometheus_itself_would_tell(steps: list[float | None]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    gathered = BufferedHistogram(Histogram("h", "x", buckets=BOUNDS, registry=ours))
    plain = Histogram("h", "x", buckets=BOUNDS, registry=theirs)

    for step in steps:
        if step is None:
            gathered.flush()
        else:
            gathered.observe(step)
            plain.observe(step)
    gathered.flush()

    def told(registry: CollectorRegistry) -> list[tuple[str, float]]:
        lines = generate_latest(registry).decode().splitlines()
        pairs = [line.rpartition(" ") for line in lines if line[0] != "#" and "created" not in line]
        return [(name, round(float(value), 4)) for name, _, value in pairs]

    assert told(ours) == told(theirs)


def test_a_gauge_comes_back_to_where_it_was() -> None:
    registry = CollectorRegistry()
    count = BufferedCounter(Gauge("g", "x", registry=registry))
    count.inc()
    count.dec()
    count.inc(2)
    count.flush()
    assert registry.get_sample_value("g") == 2
    count.dec()
    count.flush()
    assert registry.get_sample_value("g") == 1


def test_what_is_counted_is_told_at_once_or_at_the_next_beat() -> None:
    metrics = Metrics()
    line = b'tollgate_http_requests_total{route="/x",status="200"} '
    metrics.http.labels("/x", "200").inc()
    assert line + b"1.0" in metrics.render()
    metrics.http.labels("/x", "200").inc()
    for _ in range(FLUSH_EVERY):
        metrics.observe_lag(0.0)
    assert line + b"2.0" in metrics.render()


def test_what_there_is_no_space_for_does_not_pile_up() -> None:
    dropped = BufferedHistogram(None)
    family = Family(lambda values: BufferedHistogram(None), dropped=dropped, has_space=lambda: False)
    family.labels("a").observe_each(0.1, 3)
    assert dropped._values == [0.1] * 3
    family.flush()
    assert dropped._values == []
