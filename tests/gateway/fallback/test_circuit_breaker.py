"""The breaker's states, against a clock that the test turns; and that no caller opens it for another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.fallback.circuit_breaker import EVERYBODY, PROBE_RETRY_AFTER, Breaker, Caller, Permit, Scope
from gateway.fallback.health import HealthRegistry
from gateway.policy import schema
from gateway.policy.schema import Target

LIMITS = schema.BreakerSettings(failures=3, cooldown="10s")  # type: ignore[arg-type]
A, A2, B, C = Caller("a", "k1"), Caller("a", "k2"), Caller("b", "k1"), Caller("c", "k1")


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def admitted(breaker: Breaker, caller: Caller = A, *, counts: bool = True) -> Permit:
    permit = breaker.acquire(caller, LIMITS, counts=counts)
    assert permit is not None
    return permit


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    for _ in range(LIMITS.failures):
        admitted(breaker).failed()
    assert not breaker.is_closed
    return breaker


def open_for_all(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    for caller in (A, B, A, B):
        admitted(breaker, caller).failed()
    assert breaker.is_open
    return breaker


def test_so_many_failures_and_such_a_share_open_it() -> None:
    breaker = Breaker(Clock())
    for end in ("failed", "succeeded", "failed", "release", "succeeded"):
        getattr(admitted(breaker), end)()
        assert breaker.is_closed
    admitted(breaker).failed()
    assert breaker.acquire(A, LIMITS) is None
    assert breaker.wait(A) == 10.0


def test_what_one_event_has_ended_counts_once() -> None:
    breaker = Breaker(Clock())
    for _ in range(10):
        admitted(breaker).failed("one")
    assert breaker.is_closed
    for incident in ("two", "three"):
        admitted(breaker).failed(incident)
    assert breaker.acquire(A, LIMITS) is None


def test_a_copy_is_in_the_same_state_and_changes_nothing() -> None:
    clock = Clock()
    told: list[Scope] = []
    breaker = Breaker(clock, lambda scope, failures, cooldown: told.append(scope))
    for caller in (A, B, A, B):
        admitted(breaker, caller).failed()
    told.clear()
    copy = breaker.copied()
    assert copy.acquire(A, LIMITS) is None and copy.wait(A) == breaker.wait(A) == 10.0
    clock.now += 10.0
    admitted(copy).succeeded()
    assert (copy.is_closed, breaker.is_closed) == (True, False)
    assert told == []
    assert breaker.acquire(A, LIMITS) is not None, "the probe of the copy is not its own"


def test_a_small_share_does_not_however_many() -> None:
    breaker = Breaker(Clock())
    for number in range(300):
        admitted(breaker).failed() if number % 3 == 2 else admitted(breaker).succeeded()
    assert breaker.is_closed


def test_nor_do_failures_far_apart() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(20):
        admitted(breaker).failed()
        clock.now += LIMITS.window * 0.6
    assert breaker.is_closed


def test_what_one_key_of_a_tenant_meets_is_its_own() -> None:
    breaker = opened(Clock())
    assert breaker.wait(A) > 0
    assert breaker.wait(A2) == breaker.wait(B) == 0
    admitted(breaker, A2).failed()
    assert breaker.wait(A2) == 0, "one is chance"
    admitted(breaker, A2).failed()
    assert breaker.wait(Caller("a", "k3")) > 0, "all of the tenant's"
    assert breaker.wait(B) == 0, "and nobody else"


def test_with_as_many_keys_as_it_likes_a_tenant_opens_it_for_nobody_else() -> None:
    breaker = Breaker(Clock())
    for key in range(50):
        if (permit := breaker.acquire(Caller("a", str(key)), LIMITS)) is not None:
            permit.failed()
    assert breaker.wait(A) > 0
    assert breaker.wait(B) == 0 and not breaker.is_open


def test_what_several_tenants_meet_opens_it_for_all() -> None:
    breaker = open_for_all(Clock())
    assert breaker.wait(C) == 10.0 and breaker.acquire(C, LIMITS) is None


def test_a_tenant_that_fails_beside_another_that_is_well_served_does_not() -> None:
    """However many it sends, and though the other meets a failure now and then."""
    breaker = Breaker(Clock())
    for number in range(400):
        if (permit := breaker.acquire(A, LIMITS)) is not None:
            permit.failed()
        permit = admitted(breaker, B if number % 2 else C)
        permit.failed() if number % 10 == 0 else permit.succeeded()
    assert breaker.wait(B) == breaker.wait(C) == 0


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.booleans()), max_size=60), st.integers(1, 50))
def test_when_it_opens_for_all_what_the_others_met_warrants_it(
    met: list[tuple[str, bool]], flood: int
) -> None:
    """However many requests fail of one tenant, with however many keys."""
    breaker = Breaker(Clock())
    asked = lost = 0
    for tenant, failed in met:
        for key in range(flood):
            if (permit := breaker.acquire(Caller("a", str(key)), LIMITS)) is not None:
                permit.failed()
        if (permit := breaker.acquire(Caller(tenant, "k"), LIMITS)) is not None:
            permit.failed() if failed else permit.succeeded()
            asked, lost = asked + 1, lost + failed
        if breaker.is_open:
            assert lost >= 2 and lost >= LIMITS.share * asked
            return


def test_copies_and_judges_say_nothing_and_probe_nothing() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for caller in (A, B, C, A, B, C):
        admitted(breaker, caller, counts=False).failed()
    assert breaker.is_closed
    breaker = open_for_all(clock)
    clock.now += 11
    assert breaker.acquire(C, LIMITS, counts=False) is None
    admitted(breaker, C).succeeded()
    assert breaker.acquire(C, LIMITS, counts=False) is not None


def test_after_the_cooldown_there_is_one_probe() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 9.9
    assert breaker.acquire(A, LIMITS) is None
    clock.now += 0.2
    assert breaker.wait(A) == 0
    probe = admitted(breaker)
    assert breaker.acquire(A, LIMITS) is None
    assert breaker.wait(A) == PROBE_RETRY_AFTER
    probe.succeeded()
    assert breaker.is_closed
    for _ in range(LIMITS.failures - 1):
        admitted(breaker).failed()
    assert breaker.is_closed, "failures from before the recovery are forgotten"


def test_a_probe_that_ends_for_other_reasons_makes_room_for_the_next() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 10
    admitted(breaker).release()
    probe = admitted(breaker)
    probe.failed()
    assert breaker.wait(A) == 10.0


def test_one_whose_probes_fail_does_not_keep_it_open_for_the_others() -> None:
    clock = Clock()
    breaker = open_for_all(clock)
    for _ in range(3):
        clock.now += 10
        admitted(breaker, A).failed()
        assert breaker.wait(A) == 10.0
        assert breaker.wait(C) == 0
    admitted(breaker, C).succeeded()
    assert breaker.wait(C) == 0 and not breaker.is_open


def test_two_whose_probes_fail_do() -> None:
    clock = Clock()
    breaker = open_for_all(clock)
    clock.now += 10
    admitted(breaker, A).failed()
    admitted(breaker, C).failed()
    assert breaker.wait(B) == breaker.wait(A) == breaker.wait(Caller("d", "k")) == 10.0


def test_those_from_before_it_opened_say_nothing() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    early, late = admitted(breaker), admitted(breaker)
    for _ in range(3):
        admitted(breaker).failed()
    early.succeeded()
    assert not breaker.is_closed
    clock.now += 6
    late.failed()
    assert breaker.wait(A) == 4.0


def test_only_the_first_word_counts() -> None:
    breaker = Breaker(Clock())
    for _ in range(2):
        admitted(breaker).failed()
    permit = admitted(breaker)
    permit.succeeded()
    permit.failed()
    permit.release()
    assert breaker.is_closed


def test_an_edit_of_the_policy_takes_effect_at_once() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += 3
    assert breaker.acquire(A, LIMITS.model_copy(update={"cooldown": 2.0})) is not None


def test_who_does_not_come_back_is_forgotten() -> None:
    clock = Clock()
    changes: list[tuple[Scope, int]] = []
    breaker = Breaker(clock, lambda scope, failures, cooldown: changes.append((scope, failures)))
    for _ in range(3):
        admitted(breaker, A).failed()
    clock.now += LIMITS.window + LIMITS.cooldown + 1
    admitted(breaker, B).succeeded()
    assert changes == [(Scope("a", "k1"), 3), (Scope("a", "k1"), 0)]
    assert breaker.is_closed


def test_whatever_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.fallback.circuit_breaker.MAX_SCOPES", 100)
    breaker = Breaker(Clock())
    for number in range(300):
        if (
            permit := breaker.acquire(Caller(f"t{number}", "k"), schema.BreakerSettings(failures=10**6))
        ) is not None:
            permit.failed()
    assert len(breaker._circuits) <= 203


def test_a_switchboard_has_one_breaker_per_target() -> None:
    health = HealthRegistry()
    one, other = Target(backend="a", model="m"), Target(backend="a", model="n")
    assert health.breaker(one) is health.breaker(one.model_copy())
    assert health.breaker(one) is not health.breaker(other)
    assert health["a"] is health["a"]
    for caller in (A, B, A, B):
        admitted(health.breaker(one), caller).failed()
    told = health.problem("a")
    assert told is not None and "'m'" in told and health.problem("b") is None
    assert admitted(health.breaker(other))
    health.recovered("a")
    assert admitted(health.breaker(one))


class Traffic(RuleBasedStateMachine):
    """Whatever comes, in whatever order: there is one probe at a time, and only while it is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.open: set[Scope] = set()
        self.breaker = Breaker(self.clock, self.changed)
        self.under_way: list[tuple[Permit, set[Scope]]] = []
        """With the scopes that each is the probe of: those that were open when it came."""

    def changed(self, scope: Scope, failures: int, cooldown: float) -> None:
        """Each change is told once."""
        assert (scope in self.open) == (not failures)
        self.open.symmetric_difference_update({scope})

    @rule(caller=st.sampled_from([A, A2, B, C]))
    def arrive(self, caller: Caller) -> None:
        may = self.breaker.wait(caller) == 0
        permit = self.breaker.acquire(caller, LIMITS)
        assert (permit is not None) == may
        if permit is not None:
            self.under_way.append((permit, self.scopes(caller) & self.open))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), end=st.sampled_from(["succeeded", "failed", "release"]))
    def leave(self, data: st.DataObject, end: str) -> None:
        permit, probed = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        mine = self.scopes(permit.caller)
        before = set(self.open)
        getattr(permit, end)()
        if probed and end == "succeeded":
            assert not probed & self.open
        elif end != "failed":
            assert self.open == before
        assert self.open - mine == before - mine, "it is nobody else's"

    @rule(seconds=st.floats(0, 15))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @staticmethod
    def scopes(caller: Caller) -> set[Scope]:
        return {Scope(*caller), Scope(caller.tenant), EVERYBODY}

    @invariant()
    def one_probe(self) -> None:
        for scope in self.open:
            assert sum(scope in probed for _, probed in self.under_way) <= 1

    @invariant()
    def it_says_whether_it_is_closed(self) -> None:
        assert self.breaker.is_closed == (not self.open)


TestTraffic = Traffic.TestCase


def test_a_proof_of_life_ends_the_cooldown_but_not_the_rule_of_one_probe() -> None:
    breaker = Breaker(lambda: 100.0)
    limits = schema.BreakerSettings(failures=1, cooldown="1h")  # type: ignore[arg-type]
    breaker.recovered()
    assert breaker.is_closed, "nothing to do for one that is closed"
    permit = breaker.acquire(A, limits)
    assert permit is not None
    permit.failed()
    assert breaker.acquire(A, limits) is None
    breaker.recovered()
    probe = breaker.acquire(A, limits)
    assert probe is not None
    assert breaker.acquire(A, limits) is None
    probe.failed()
    assert breaker.acquire(A, limits) is None and breaker.wait(A) == 3600
