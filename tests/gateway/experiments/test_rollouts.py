"""Whole roll-outs in virtual time, by the gateway's own keeper: a sample of ``python -m benchmarks.rollouts``."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.rollouts import ALL_GUARDS, Arm, Ended, a_rollout, rolled_out

pytestmark = pytest.mark.anyio
STEPS = (1.0, 5.0, 25.0, 100.0)


async def through_all_steps(seeds: range) -> Counter[str]:
    rollout = a_rollout(STEPS, ALL_GUARDS)
    return Counter(
        [(await rolled_out(rollout, Arm(), Arm(), seed=seed, most=10**6)).state.status for seed in seeds]
    )


async def test_without_a_difference_they_are_completed() -> None:
    ends = await through_all_steps(range(100, 108))
    assert ends["completed"] >= 7
    assert set(ends) <= {"completed", "returned"}


@pytest.mark.slow
async def test_of_a_thousand_without_a_difference_at_most_one_in_twenty_returns() -> None:
    ends = await through_all_steps(range(1000))
    assert ends["returned"] <= 50
    assert ends.total() == 1000


async def at_five_percent(new: Arm, guard: dict[str, float], *, seed: int, most: int) -> Ended:
    rollout = a_rollout((5.0, 100.0), guard, hold="9999d")
    return await rolled_out(rollout, Arm(errors=0.05), new, seed=seed, most=most)


@pytest.mark.parametrize("seed", range(3))
async def test_doubled_errors_at_five_percent_return_within_the_stated_number(seed: int) -> None:
    end = await at_five_percent(Arm(errors=0.10), {"errors": 1.0}, seed=seed, most=16_000)
    assert end.state.status == "returned"
    assert end.state.share == 0.0
    assert end.state.decisions[-1].why.startswith("errors: ")


@pytest.mark.parametrize(
    ("new", "guard"), [(Arm(0.05, slower=2.0), "ttft_p95"), (Arm(0.05, dearer=2.0), "cost")]
)
async def test_what_is_slower_or_dearer_returns_and_says_so(new: Arm, guard: str) -> None:
    end = await at_five_percent(new, ALL_GUARDS, seed=5, most=16_000)
    assert end.state.status == "returned"
    assert end.state.decisions[-1].why.startswith(f"{guard}: ")


async def test_what_is_tolerated_does_not_return() -> None:
    tolerant = {"errors": 3.0, "ttft_p95": 2.5, "cost": 2.5}
    end = await at_five_percent(Arm(0.10, slower=2.0, dearer=2.0), tolerant, seed=6, most=8_000)
    assert end.state.status == "running"
