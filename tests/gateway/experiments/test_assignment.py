from __future__ import annotations

from collections import Counter

import pytest

from gateway.experiments.assignment import arm_of, is_new

KEYS = [str(number).encode() for number in range(4000)]


def test_shares_are_as_wanted_and_growing_ones_move_nobody_back() -> None:
    before: set[bytes] = set()
    for share in (0.01, 0.05, 0.25, 0.6, 0.95):
        now = {key for key in KEYS if is_new("a", key, share)}
        assert len(now) / len(KEYS) == pytest.approx(share, abs=0.025)
        assert before <= now
        before = now


def test_experiments_do_not_choose_the_same_keys() -> None:
    chosen = [{key for key in KEYS if is_new(name, key, 0.25)} for name in ("a", "b")]
    assert len(chosen[0] & chosen[1]) / len(KEYS) == pytest.approx(0.0625, abs=0.02)


def test_an_arm_that_grows_takes_from_all_others_and_moves_nothing_between_them() -> None:
    few, more = {"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 1.0, "b": 1.0, "c": 2.0}
    moved = Counter((arm_of("x", key, few), arm_of("x", key, more)) for key in KEYS)
    assert {(one, other) for one, other in moved if one != other} == {("a", "c"), ("b", "c")}
    assert arm_of("x", b"k", {"a": 0.0, "b": 1.0}) == "b"
