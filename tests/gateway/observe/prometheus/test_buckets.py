from __future__ import annotations

from itertools import pairwise

import pytest

from gateway.observe.prometheus import buckets

ALL = {name: value for name, value in vars(buckets).items() if name.isupper()}


@pytest.mark.parametrize("name", ALL)
def test_bounds_grow_by_steps_that_leave_a_quantile_its_meaning(name: str) -> None:
    """Within a bucket a quantile is interpolated: it is wrong by the step at most."""
    assert all(low < high <= 4 * low for low, high in pairwise(ALL[name]))


def test_latencies_of_models_are_within_the_bounds() -> None:
    assert buckets.FIRST_TOKEN[0] <= 0.005 and buckets.FIRST_TOKEN[-1] >= 60
    assert buckets.INTER_TOKEN[0] <= 0.001, "1,000 tokens a second"
    assert buckets.WHOLE[-1] >= 600, "an answer of a thinking model"
    reading = [bound for bound in buckets.INTER_TOKEN if 0.005 <= bound <= 0.2]
    assert len(reading) >= 10, "from 200 tokens a second to 5, where people notice"
