"""A tier's slots: what is found, what is evicted first, what is worth bringing back."""

from __future__ import annotations

import pytest

from engine.core.tiers.tier import Tier
from engine.core.tiers.worth import worth_loading


def filled(slots: int, *keys: bytes, weight: float = 1.0) -> Tier:
    tier = Tier(slots)
    entries = [(key, slot) for key in keys if (slot := tier.reserve()) is not None]
    tier.keep(entries, weight)
    tier.check_integrity(0)
    return tier


def test_of_a_chain_the_last_block_is_evicted_first_and_what_was_touched_last_goes_last() -> None:
    tier = filled(4, b"a", b"b", b"c", b"d")
    tier.touch([b"a", b"b"], 1.0)
    for left in (b"abc", b"ab", b"a"):
        slot = tier.reserve()
        assert slot is not None
        tier.give_back(slot)
        # The free slot is taken first the next time: fill it.
        tier.keep([(b"x" + left, tier.reserve() or 0)], 64.0)
        assert [key for key in (b"a", b"b", b"c", b"d") if key in tier] == [bytes([one]) for one in left]
    assert tier.evicted == 3
    tier.check_integrity(0)


def test_what_is_being_copied_is_not_evicted() -> None:
    tier = filled(2, b"a", b"b")
    slot = tier.hold(b"b")
    assert tier.reserve() is not None and b"a" not in tier and tier.reserve() is None
    tier.check_integrity(2)
    tier.drop(b"b")
    tier.let_go(slot, 1.0)
    assert b"b" not in tier and tier.pool.free == 1
    tier.check_integrity(1)


def test_two_who_bring_the_same_block_keep_one() -> None:
    tier = Tier(3)
    for _ in range(2):
        tier.keep([(b"a", tier.reserve() or 0)], 1.0)
    assert len(tier) == 1 and tier.pool.free == 2
    tier.check_integrity(0)


def test_what_was_there_before_the_start_is_evicted_in_its_order() -> None:
    tier = Tier(5)
    tier.fill([(3, b"deep"), (1, b"middle"), (4, b"root")])
    tier.check_integrity(0)
    assert [tier.find(key) for key in (b"root", b"middle", b"deep", b"other")] == [4, 1, 3, None]
    new = [tier.reserve() for _ in range(4)]
    assert {3, 0, 2, 1} == set(new) and b"root" in tier


@pytest.mark.parametrize(
    ("here", "prefill", "load", "read", "count"),
    [
        ([True] * 4, 0, 0, 0, 4),  # nothing is known yet
        ([True] * 4, 100, 0, 0, 4),
        ([True] * 4, 100, 2000, 0, 4),  # 0.05 s a block in place of 0.16 s
        ([True] * 4, 100, 600, 0, 0),
        ([True, True, False, False], 100, 2000, 100, 2),  # the disk takes a second a block
        ([True, False, True, True], 100, 2000, 1000, 4),
        ([False, True, True, True], 100, 2000, 300, 4),  # one slow block leads to three quick ones
        ([False, True, False, False], 100, 2000, 300, 0),
    ],
)
def test_blocks_come_back_where_that_is_quicker_than_to_compute_them(
    here: list[bool], prefill: float, load: float, read: float, count: int
) -> None:
    found = worth_loading(
        here,
        block_bytes=100,
        block_tokens=16,
        prefill_speed=prefill,
        load_bandwidth=load,
        read_bandwidth=read,
    )
    assert found == count
