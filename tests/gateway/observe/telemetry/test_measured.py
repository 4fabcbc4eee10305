from __future__ import annotations

import random
from bisect import bisect_left

from gateway.observe.telemetry.measured import SECONDS, AttemptMetrics, ClientMetrics, Histogram
from gateway.types import Usage

LABELS = (("gen_ai.request.model", "m"),)


def test_values_are_sorted_into_buckets_however_many_come_between_two_exports() -> None:
    numbers = random.Random(7)
    histogram, values = Histogram("h", "s", "", SECONDS), []
    for count in (1, 0, 999, 1000, 1001, 2500):
        for _ in range(count):
            values.append(numbers.choice((0.01, 100.0, numbers.random())))
            histogram.of(LABELS).add(values[-1])
        found = histogram.copy().series[LABELS]
        expected = [0] * (len(SECONDS) + 1)
        for value in values:
            expected[bisect_left(SECONDS, value)] += 1
        assert found.buckets == expected
        assert found.count == len(values)
        assert abs(found.sum - sum(values)) < 1e-6
        assert (found.low, found.high) == (min(values), max(values))


def test_a_snapshot_stays_as_it_was() -> None:
    metrics = ClientMetrics()
    attempts = AttemptMetrics(metrics, LABELS)
    attempts.add(0.5, None, 0.1, Usage(5, 7, cached=2, reasoning=3))
    before = metrics.snapshot()
    attempts.add(1.5, "timeout", None, Usage(1, 1, cached=1))
    after = metrics.snapshot()
    assert before.input_tokens.series[LABELS].sum == 5
    assert before.cache_read.values == {LABELS: 2}
    assert list(before.duration.series) == [LABELS]
    assert after.input_tokens.series[LABELS].sum == 6
    assert after.cache_read.values == {LABELS: 3}
    assert after.duration.series[*LABELS, ("error.type", "timeout")].count == 1
