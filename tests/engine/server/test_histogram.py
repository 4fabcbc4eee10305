"""The histogram of every token shows what prometheus_client's own shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from engine.server.histogram import TokenHistogram

BOUNDS = (0.01, 0.025, 1, 80)


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.01, 0.02, 0.025, 0.5, 1, 79.5, 80, 81]), st.integers(1, 3)),
        max_size=20,
    )
)
def test_it_renders_as_prometheus_clients(values: list[tuple[float, int]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    light = TokenHistogram("seconds", "What passes.", BOUNDS, {"model": 'a "b"'})
    ours.register(light)
    reference = Histogram("seconds", "What passes.", ("model",), buckets=BOUNDS, registry=theirs).labels(
        'a "b"'
    )
    for value, times in values:
        light.observe(value, times)
        for _ in range(times):
            reference.observe(value)
    lines = [generate_latest(one).decode().splitlines() for one in (ours, theirs)]
    found, expected = (
        [line for line in some if "_created" not in line and "_sum" not in line] for some in lines
    )
    assert found == expected
    total = next(float(line.rsplit(" ", 1)[1]) for line in lines[0] if "_sum" in line)
    assert abs(total - sum(value * times for value, times in values)) < 1e-6
