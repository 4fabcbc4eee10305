"""Scores as evidence: what a low one is, when a block ends, and what a keeper takes of them."""

from __future__ import annotations

import random
from collections import Counter

import orjson
import pytest

from benchmarks.rollouts import BAD, GOOD, JUDGED, Arm, a_rollout, rolled_out
from gateway.experiments.assignment import CONTROL, NEW
from gateway.experiments.common_states import MemoryStates
from gateway.experiments.evidence import Evidence, Observed
from gateway.experiments.keeper import Keeper, Told
from gateway.experiments.rollout_state import RolloutState
from gateway.experiments.scores import BLOCK, CALIBRATION, CALLERS, JUDGE, Scores, mean_of, step_of
from gateway.experiments.sequential_test import Rate, log_ratios
from gateway.policy.schema import Rollout

ROLLOUT = Rollout.model_validate(
    {
        "to": {"backend": "b", "model": "x"},
        "steps": [50, 100],
        "hold": "10m",
        "guard": {"errors": None, "score": 1.0},
    }
)


@pytest.mark.parametrize(
    ("before", "low"),
    [
        ({100: 60}, 100),
        ({0: 30, 100: 30}, 100),
        ({0: 10, 25: 15, 50: 25, 75: 10}, 50),
        ({25: 5, 50: 10, 75: 25, 100: 20}, 100),
        ({0: 40, 75: 15, 100: 5}, 75),
    ],
)
def test_low_is_what_parts_the_controls_scores_most_evenly(before: dict[int, int], low: int) -> None:
    scores = Scores()
    scores.total[CONTROL] = Counter(before)
    levels = (0, 25, 50, 75, 100)
    found = scores.add({NEW: Counter(dict.fromkeys(levels, 2)), CONTROL: Counter({100: 10})}, 1.0)
    assert found == log_ratios(Rate(2 * sum(score < low for score in levels), 10), Rate(0, 10))


def test_a_block_ends_with_enough_of_both_and_is_counted_once_the_control_is_known() -> None:
    scores = Scores()
    first = {CONTROL: Counter({100: CALIBRATION}), NEW: Counter({0: BLOCK - 1})}
    assert scores.add(first, 1.0) is None
    assert scores.add({NEW: Counter({0: 1})}, 1.0) is None, "nothing was known before this block"
    assert scores.block == {CONTROL: Counter(), NEW: Counter()}
    scores.total[CONTROL].update({50: 10})
    again = {CONTROL: Counter({100: BLOCK}), NEW: Counter({0: BLOCK})}
    assert scores.add(again, 1.0) == log_ratios(Rate(BLOCK, BLOCK), Rate(0, BLOCK))
    assert Scores.from_json(orjson.loads(orjson.dumps(scores.to_json()))) == scores


def a_keeper(now: list[float]) -> Keeper:
    async def tell(told: Told) -> None:
        """Nobody listens."""

    return Keeper(MemoryStates(), {"e": ("m", ROLLOUT)}, tell, clock=lambda: now[0])


def state_of(keeper: Keeper) -> RolloutState:
    state = keeper.state("e")
    assert state is not None
    return state


def fill(keeper: Keeper, count: int) -> None:
    for arm in (NEW, CONTROL):
        for _ in range(count):
            keeper.record("e", arm, Observed())


@pytest.mark.anyio
async def test_everybody_goes_there_only_once_enough_answers_have_a_score() -> None:
    now = [1000.0]
    keeper = a_keeper(now)
    await keeper.look()
    fill(keeper, 30)
    now[0] += 601
    await keeper.look()
    assert (state_of(keeper).status, state_of(keeper).share) == ("running", 50.0)
    assert state_of(keeper).waits_for(ROLLOUT, now[0]) == "20 more scores of the new target"
    keeper.scored("e", NEW, JUDGE, 900.0, 1.0)  # of a request before the step
    for source in (JUDGE, CALLERS):
        for _ in range(10):
            keeper.scored("e", NEW, source, 1100.0, 0.75)
    await keeper.look()
    assert state_of(keeper).status == "completed"
    assert state_of(keeper).evidence.scored(NEW) == (20, 0.75)


def test_a_state_of_an_earlier_version_has_no_scores() -> None:
    content = Evidence().to_json()
    del content["scores"]
    assert Evidence.from_json(content).scores == Evidence().scores


@pytest.mark.anyio
async def test_worse_answers_return_and_say_so() -> None:
    rollout = a_rollout((5.0, 100.0), {"score": 1.0}, hold="9999d")
    end = await rolled_out(rollout, Arm(points=GOOD), Arm(points=BAD), seed=1, most=40_000)
    assert end.state.status == "returned"
    why = end.state.decisions[-1].why
    assert why.startswith("score: 0.6")
    assert why.endswith("low ones more often than the control's")
    assert end.in_new * JUDGED < 120


def test_a_mean_and_its_steps() -> None:
    draw = random.Random(2)
    given = [draw.random() for _ in range(500)]
    counts = Counter(map(step_of, given))
    assert mean_of(counts) == pytest.approx(sum(given) / 500, abs=0.005)
    assert mean_of(Counter()) is None
