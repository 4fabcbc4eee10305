from __future__ import annotations

from gateway.admission.wait_chances import WaitChances

KINDS = (("pro", "t"), ("pro", None))


def knowing(*outcomes: tuple[float, bool]) -> WaitChances:
    chances = WaitChances()
    for part, in_time in outcomes:
        chances.learn(KINDS, part, in_time)
    return chances


def test_nobody_is_hopeless_before_enough_is_known() -> None:
    assert not knowing(*[(1.5, False)] * 18).is_hopeless(KINDS, 1.5)
    assert knowing(*[(1.5, False)] * 19).is_hopeless(KINDS, 1.5)


def test_a_longer_wait_is_no_better_than_shorter_ones_that_were_in_vain() -> None:
    chances = knowing(*[(1.5, False)] * 40)
    assert chances.is_hopeless(KINDS, 9.0)
    assert not chances.is_hopeless(KINDS, 1.4), "of that nothing is known"


def test_a_long_queue_from_which_most_are_served_is_none_to_refuse_for() -> None:
    """Whoever has waited too long leaves it, and others move up."""
    assert not knowing(*[(1.5, False), (1.5, True)] * 20).is_hopeless(KINDS, 1.5)
    assert not knowing(*[(1.5, False)] * 38, *[(1.5, True)] * 2).is_hopeless(KINDS, 1.5)
    assert not knowing(*[(0.7, False)] * 40).is_hopeless(KINDS, 0.8), "it has time"


def test_one_in_four_is_let_in_all_the_same() -> None:
    chances = WaitChances()
    assert [chances.may_try() for _ in range(8)] == [False, False, False, True] * 2
