"""The policy against machines whose steps take what a formula says. No clock, no torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from engine.worker.draft_length import CostCurve, DraftLengthPolicy
from engine.worker.draft_tree_size import DraftTreePolicy
from tests.sampling import diagonal

Cost = Callable[[int, int], float]
"""(base, drafts) → seconds, the making of the drafts included."""


class Machine:
    """Runs requests that always have drafts, each of which comes true by its request's own chance."""

    def __init__(
        self, lengths: DraftLengthPolicy, cost: Cost, acceptances: dict[int, float], most: int = 4
    ) -> None:
        self.lengths = lengths
        self.cost = cost
        self.acceptances = acceptances
        self.most = most
        self.seconds = 0.0
        self.tokens = 0
        self.drafts_made: list[dict[int, int]] = []
        self._numbers = random.Random(1)
        self._next: dict[int, int] = {}

    def run(self, steps: int) -> Machine:
        """Figures are of these steps alone."""
        self.seconds, self.tokens, self.drafts_made = 0.0, 0, []
        for _ in range(steps):
            self._step()
        return self

    def _step(self) -> None:
        base, total = len(self.acceptances), 0
        drafts = {i: drafted for i, drafted in self._next.items() if i in self.acceptances}
        for request_id, drafted in drafts.items():
            accepted = self._accept(request_id, drafted)
            self.lengths.record_acceptance(request_id, drafted, accepted)
            total += accepted
        drafted = sum(drafts.values())
        seconds = self.cost(base, drafted)
        self.lengths.observe(base, drafted, total, seconds)
        self.seconds += seconds
        self.tokens += base + total
        self.drafts_made.append(drafts)
        limits = dict.fromkeys(self.acceptances, self.most)
        self._next = {} if self.lengths.paused(base) else self.lengths.choose(base, limits)

    def _accept(self, request_id: int, drafted: int) -> int:
        accepted = 0
        while accepted < drafted and self._numbers.random() < self.acceptances[request_id]:
            accepted += 1
        return accepted

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def usual(self) -> float:
        """Draft tokens a step and request."""
        return (
            sum(sum(drafts.values()) for drafts in self.drafts_made)
            / len(self.drafts_made)
            / len(self.acceptances)
        )


def fixed(machine: Machine, length: int) -> float:
    """What that many drafts would have made of it, on average, tokens a second."""
    base = len(machine.acceptances)
    tokens = sum(sum(a**i for i in range(length + 1)) for a in machine.acceptances.values())
    return tokens / machine.cost(base, base * length)


def linear(start: float, draft: float) -> Cost:
    return lambda base, drafted: 10 + start * (drafted > 0) + draft * drafted


COSTS = [
    pytest.param(linear(0, 0.1), id="free"),
    pytest.param(linear(1, 0.5), id="cheap"),
    pytest.param(linear(0, 2), id="dear"),
    pytest.param(linear(0, 6), id="dearer"),
    pytest.param(linear(6, 0.1), id="dear-start"),
    pytest.param(linear(12, 4), id="hopeless"),
]


@pytest.mark.parametrize(
    ("acceptance", "cost", "requests"), diagonal([0.97, 0.3, 0.5, 0.7, 0.9, 0.1], COSTS, [1, 3])
)
def test_it_comes_near_the_best_fixed_length(acceptance: float, cost: Cost, requests: int) -> None:
    machine = Machine(DraftLengthPolicy(4), cost, dict.fromkeys(range(requests), acceptance))
    machine.run(400)
    machine.run(4000)
    best = max(fixed(machine, length) for length in range(5))
    assert machine.rate > 0.9 * best
    if acceptance == 0.97 and cost(1, 4) < 12:
        assert machine.usual > 3


def test_what_does_not_pay_is_hardly_tried() -> None:
    machine = Machine(DraftLengthPolicy(4), linear(2, 10), {0: 0.4})
    machine.run(1000)
    machine.run(10_000)
    assert machine.rate > 0.985 * fixed(machine, 0)
    assert any(machine.drafts_made), "but now and then"


def test_it_notices_that_speculating_begins_to_pay_and_ceases_to() -> None:
    machine = Machine(DraftLengthPolicy(4), linear(1, 0.5), {0: 0.05})
    assert machine.run(2000).usual < 0.2
    machine.acceptances = {1: 0.95}
    machine.run(9000)
    assert machine.run(500).usual > 3
    machine.acceptances = {2: 0.05}
    assert machine.run(300).usual < 1
    machine.run(1000)
    assert machine.run(500).usual < 0.3


def test_a_large_batch_that_has_no_time_left_turns_it_off_and_a_small_one_on_again() -> None:
    """Up to 16 tokens a step take the same time, as they do where weights are read from memory; then each costs."""

    def cost(base: int, drafted: int) -> float:
        return 10 + 0.6 * max(0, base + drafted - 16)

    small = dict.fromkeys(range(2), 0.7)
    machine = Machine(DraftLengthPolicy(4), cost, small)
    assert machine.run(500).usual > 3
    machine.acceptances = dict.fromkeys(range(64), 0.7)
    machine.run(200)
    large = machine.run(2000)
    assert large.usual < 0.2
    assert large.rate > 0.97 * fixed(machine, 0)
    machine.acceptances = small
    assert machine.run(100).usual > 3


def test_requests_that_are_drafted_well_get_more_than_others() -> None:
    machine = Machine(DraftLengthPolicy(4), linear(0.5, 0.5), {i: 0.95 if i % 2 else 0.2 for i in range(6)})
    machine.run(500)
    machine.run(1000)
    given = [sum(drafts.get(i, 0) for drafts in machine.drafts_made) / 1000 for i in range(6)]
    assert min(given[1::2]) > 3
    assert max(given[0::2]) < 1


def test_preparing_is_charged_too() -> None:
    """Draft tokens are for nothing, but each request that begins has to be prepared for longer than they ever save."""
    lengths = DraftLengthPolicy(4)
    machine = Machine(lengths, linear(0, 0), {0: 0.6})
    machine.run(300)
    assert machine.run(100).usual > 3
    for number in range(1, 200):
        machine.acceptances = {number: 0.6}
        machine.run(10)
        if machine.usual:
            lengths.record_preparation(300.0)
    assert machine.run(1000).usual < 1


def test_a_step_that_was_held_up_once_changes_little() -> None:
    held = 0

    def cost(base: int, drafted: int) -> float:
        nonlocal held
        held += 1
        return 10 + 0.3 * drafted + (2000 if held % 97 == 0 else 0)

    machine = Machine(DraftLengthPolicy(4), cost, {0: 0.9})
    machine.run(300)
    assert machine.run(1500).usual > 2.5


def test_no_request_gets_more_than_its_limit() -> None:
    lengths = DraftLengthPolicy(4)
    for _ in range(10):
        lengths.observe(2, 0, 0, 1.0)
    for _ in range(300):
        chosen = lengths.choose(2, {5: 1, 6: 3})
        assert chosen.keys() <= {5, 6}
        assert chosen.get(5, 0) <= 1
        assert chosen.get(6, 0) <= 3
        assert all(chosen.values())
        lengths.observe(2, sum(chosen.values()), sum(chosen.values()), 1.0)
        for request_id, drafted in chosen.items():
            lengths.record_acceptance(request_id, drafted, drafted)
    assert chosen == {5: 1, 6: 3}
    assert lengths.choose(2, {}) == {}


@pytest.mark.parametrize(("most", "trial"), [(1, [1, 1]), (3, [1, 1, 2, 2, 3, 3]), (4, [1, 1, 2, 2, 4, 4])])
def test_a_trial_has_all_sizes(most: int, trial: list[int]) -> None:
    lengths = DraftLengthPolicy(most)
    seen = []
    for _ in range(3 + len(trial)):
        chosen = lengths.choose(1, {0: 9})
        seen += chosen.values()
        lengths.observe(1, sum(chosen.values()), 0, 1.0)
    assert seen == trial


def points(curve: CostCurve, values: Iterable[tuple[int, float]]) -> CostCurve:
    for drafted, seconds in values:
        curve.add(drafted, seconds)
    return curve


def test_a_curve_draws_straight_lines() -> None:
    assert points(CostCurve([]), [(0, 10)]).estimate(3) == 10
    curve = points(CostCurve([]), [(0, 10), (1, 14), (4, 17)])
    assert [curve.estimate(drafted) for drafted in (0, 1, 2, 4, 6)] == pytest.approx([10, 14, 15, 17, 19])
    falling = points(CostCurve([]), [(0, 10), (1, 8)])
    assert falling.estimate(100) == 8


class Grove(Machine):
    """Trees: of so many tokens as many are accepted as ``yields`` says, on average."""

    def __init__(self, cost: Cost, requests: int, yields: Callable[[int], float], most: int = 8) -> None:
        super().__init__(DraftTreePolicy(most), cost, dict.fromkeys(range(requests), 0.0), most)
        self._yields = yields

    def _accept(self, request_id: int, drafted: int) -> int:
        wanted = self._yields(drafted)
        return int(wanted) + (self._numbers.random() < wanted % 1)


def test_trees_grow_as_far_as_they_pay() -> None:
    def yields(size: int) -> float:
        return 1.6 * (1 - 0.7**size)

    cheap = Grove(linear(1, 0.1), 1, yields).run(400)
    assert cheap.run(300).usual > 5
    dear = Grove(linear(1, 2.0), 1, yields).run(400)
    assert 1 < dear.run(300).usual < 4
    never = Grove(linear(1, 8.0), 1, yields).run(1500)
    assert never.run(500).usual < 0.3


def test_a_large_batch_has_no_trees_and_a_small_one_again_has() -> None:
    """Once no arithmetic unit is idle a draft token costs as much as another."""
    machine = Grove(lambda base, drafted: 10 + max(0, base + drafted - 12) * 2.0, 1, lambda size: 0.2 * size)
    assert machine.run(300).run(200).usual > 4
    machine.acceptances = dict.fromkeys(range(40), 0.0)
    assert machine.run(1500).run(500).usual < 0.5
    machine.acceptances = {0: 0.0}
    assert machine.run(300).usual > 4
