from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.lab.bench.knee import KneeSearch


def searched(search: KneeSearch, capacity: float) -> int:
    """Trials against a server that keeps all up to ``capacity`` and nothing above."""
    for trials in range(1000):
        if (rate := search.next()) is None:
            return trials
        search.tell(rate, 1.0 if rate <= capacity else 0.0)
    raise AssertionError("the search has no end")


@given(st.floats(0.5, 500), st.floats(0.1, 50), st.integers(1, 5), st.floats(0.02, 0.5))
def test_the_knee_is_found_as_closely_as_was_asked(
    capacity: float, first: float, repeats: int, tolerance: float
) -> None:
    search = KneeSearch(first, 1e4, 0.95, repeats, tolerance)
    trials = searched(search, capacity)
    if capacity < first / 64:
        assert not search.held
        return
    assert (search.failed is not None and search.held) or capacity < first / 32
    if search.held:
        assert search.held <= capacity < search.failed <= search.held * (1 + tolerance)
    assert trials <= 25 * repeats
    # No more trials than it takes for a majority.
    assert all(len(shares) == repeats // 2 + 1 for rate, shares in search.trials.items() if rate <= capacity)


@given(st.floats(0.5, 100))
def test_the_highest_rate_that_is_allowed_ends_it(most: float) -> None:
    search = KneeSearch(0.5, most, 0.9, 1, 0.1)
    searched(search, 1e9)
    assert search.held == most and not search.is_bounded and max(search.trials) == most


def test_most_of_the_trials_decide() -> None:
    search = KneeSearch(8, 8, 0.9, 3, 0.1)
    for share in (0.95, 0.5, 0.9):
        assert search.next() == 8
        search.tell(8, share)
    assert search.next() is None and search.held == 8
    tied = KneeSearch(8, 16, 0.9, 2, 0.1)
    tied.tell(8, 0.5)
    assert tied.failed == 8, "half is not most"


def test_a_server_that_keeps_nothing_has_no_knee() -> None:
    search = KneeSearch(1, 100, 0.9, 1, 0.1)
    searched(search, 0.0)
    assert search.held == 0 and min(search.trials) == 1 / 64
