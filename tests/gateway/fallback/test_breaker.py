"""The breaker's states, against a clock that the test turns."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.fallback.breaker import SOON, Breaker, Trial
from gateway.fallback.switchboard import Switchboard
from gateway.policy import schema

LIMITS = schema.Breaker(failures=3, cooldown="10s")  # type: ignore[arg-type]


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def admitted(breaker: Breaker) -> Trial:
    trial = breaker.admit(LIMITS)
    assert trial is not None
    return trial


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    for _ in range(LIMITS.failures):
        admitted(breaker).failed()
    assert not breaker.closed
    return breaker


def test_failures_in_a_row_open_it() -> None:
    breaker = Breaker(Clock())
    for end in ("failed", "failed", "succeeded", "failed", "let_go", "failed"):
        getattr(admitted(breaker), end)()
        assert breaker.closed
    admitted(breaker).failed()
    assert breaker.admit(LIMITS) is None
    assert breaker.wait() == 10.0


def test_after_the_cooldown_there_is_one_probe() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 9.9
    assert breaker.admit(LIMITS) is None
    clock.now += 0.2
    assert breaker.wait() == 0
    probe = admitted(breaker)
    assert breaker.admit(LIMITS) is None
    assert breaker.wait() == SOON
    probe.succeeded()
    assert breaker.closed
    for _ in range(LIMITS.failures - 1):
        admitted(breaker).failed()
    assert breaker.closed, "failures from before the recovery are forgotten"


def test_a_probe_that_ends_for_other_reasons_makes_room_for_the_next() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10
    admitted(breaker).let_go()
    probe = admitted(breaker)
    probe.failed()
    assert breaker.wait() == 10.0


def test_those_from_before_it_opened_say_nothing() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    early, late = admitted(breaker), admitted(breaker)
    for _ in range(3):
        admitted(breaker).failed()
    early.succeeded()
    assert not breaker.closed
    clock.now += 6
    late.failed()
    assert breaker.wait() == 4.0


def test_only_the_first_word_counts() -> None:
    breaker = Breaker(Clock())
    for _ in range(2):
        admitted(breaker).failed()
    trial = admitted(breaker)
    trial.succeeded()
    trial.failed()
    trial.let_go()
    assert breaker.closed


def test_an_edit_of_the_policy_takes_effect_at_once() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 3
    assert breaker.admit(LIMITS.model_copy(update={"cooldown": 2.0})) is not None


def test_a_switchboard_has_one_line_per_backend() -> None:
    switchboard = Switchboard()
    assert switchboard["a"] is switchboard["a"]
    assert switchboard["a"].breaker is not switchboard["b"].breaker


class Traffic(RuleBasedStateMachine):
    """Whatever comes, in whatever order: there is one probe at a time, and only while it is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breaker = Breaker(self.clock)
        self.under_way: list[tuple[Trial, bool]] = []

    @rule()
    def arrive(self) -> None:
        was_closed = self.breaker.closed
        may = self.breaker.wait() == 0
        trial = self.breaker.admit(LIMITS)
        assert (trial is not None) == may
        if trial is not None:
            self.under_way.append((trial, not was_closed))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), end=st.sampled_from(["succeeded", "failed", "let_go"]))
    def leave(self, data: st.DataObject, end: str) -> None:
        trial, was_probe = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        closed = self.breaker.closed
        getattr(trial, end)()
        if was_probe:
            assert self.breaker.closed == (end == "succeeded")
        elif not closed:
            assert not self.breaker.closed

    @rule(seconds=st.floats(0, 15))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def one_probe(self) -> None:
        probes = sum(was_probe for _, was_probe in self.under_way)
        assert probes <= (0 if self.breaker.closed else 1)


TestTraffic = Traffic.TestCase


def test_a_proof_of_life_ends_the_cooldown_but_not_the_rule_of_one_probe() -> None:
    breaker = Breaker(lambda: 100.0)
    limits = schema.Breaker(failures=1, cooldown="1h")  # type: ignore[arg-type]
    breaker.proven()
    assert breaker.closed, "nothing to do for one that is closed"
    trial = breaker.admit(limits)
    assert trial is not None
    trial.failed()
    assert breaker.admit(limits) is None
    breaker.proven()
    probe = breaker.admit(limits)
    assert probe is not None
    assert breaker.admit(limits) is None
    probe.failed()
    assert breaker.admit(limits) is None and breaker.wait() == 3600
