from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.eviction import EvictionOrder, round_weight

TOTAL = 8


def keep(order: EvictionOrder, block: int, weight: float = 1.0) -> None:
    order.use(block, weight)
    order.add(block)


def test_the_least_recently_used_goes_first_and_children_before_parents() -> None:
    order = EvictionOrder(TOTAL)
    for block in (2, 0, 1):
        keep(order, block)
    order.advance(1)
    keep(order, 3)
    order.remove(2)
    keep(order, 2)
    assert [order.pop() for _ in range(4)] == [0, 1, 3, 2]
    assert len(order) == 0
    with pytest.raises(ValueError, match="no block"):
        order.pop()


def test_a_heavy_block_outlives_lighter_ones_used_up_to_the_bound_after_it_and_no_longer() -> None:
    for passed, first in ((3 * TOTAL - 1, 1), (3 * TOTAL + 1, 0)):
        order = EvictionOrder(TOTAL)
        keep(order, 0, 4.0)
        order.advance(passed)
        keep(order, 1, 1.0)
        assert order.pop() == first


def test_nobody_is_starved_by_heavy_blocks_that_nobody_uses() -> None:
    """A pool full of the heaviest: new light blocks soon stay, and the heavy ones go."""
    order = EvictionOrder(TOTAL)
    heavy = set(range(TOTAL))
    for block in heavy:
        keep(order, block, 64.0)
    for _ in range((64 - 1) * TOTAL + TOTAL):
        block = order.pop()
        heavy.discard(block)
        order.advance(1)
        keep(order, block, 1.0)
    assert not heavy


def test_a_block_keeps_the_largest_weight_until_it_expires() -> None:
    order = EvictionOrder(TOTAL)
    keep(order, 0, 4.0)
    order.advance(TOTAL)
    order.remove(0)
    keep(order, 0, 1.0)
    order.advance(3 * TOTAL - 1)
    keep(order, 1, 1.0)
    assert order.pop() == 1
    order.remove(0)
    order.advance(TOTAL + 2)
    keep(order, 0, 1.0)
    order.advance(1)
    keep(order, 1, 1.0)
    assert order.pop() == 0


@pytest.mark.parametrize(("passed", "first"), [(4 * TOTAL, 1), (4 * TOTAL + 1, 0)])
def test_a_block_that_is_used_as_it_expires_has_not_expired(passed: int, first: int) -> None:
    order = EvictionOrder(TOTAL)
    keep(order, 0, 4.0)
    order.advance(passed)
    order.remove(0)
    keep(order, 0, 1.0)
    order.advance(1)
    keep(order, 1, 1.0)
    assert order.pop() == first


def test_what_is_forgotten_weighs_nothing() -> None:
    order = EvictionOrder(TOTAL)
    keep(order, 0, 64.0)
    assert order.pop() == 0
    keep(order, 0, 1.0)
    order.advance(1)
    keep(order, 1, 1.0)
    assert order.pop() == 0


@pytest.mark.parametrize(
    ("weight", "rounded"),
    [(1, 1), (2, 2), (4, 4), (1.4, 2**0.5), (0, 0.25), (-1, 0.25), (1e9, 64), (float("nan"), 0.25)],
)
def test_weights_are_rounded_to_few(weight: float, rounded: float) -> None:
    assert round_weight(weight) == pytest.approx(rounded)


@given(
    st.lists(
        st.tuples(st.integers(0, TOTAL - 1), st.sampled_from([0.5, 1.0, 2.0, 8.0]), st.integers(0, 20)),
        max_size=60,
    )
)
def test_whatever_happens_the_one_that_expires_first_goes_first(
    uses: list[tuple[int, float, int]],
) -> None:
    """Against a plain list of weights, times and turns."""
    order, now = EvictionOrder(TOTAL), 0
    model: dict[int, tuple[float, float, int]] = {}
    for turn, (block, weight, passed) in enumerate(uses):
        if block in model:
            order.remove(block)
            known, expiry, _ = model[block]
            heaviest = max(known, weight) if expiry >= now else weight
        else:
            heaviest = weight
        keep(order, block, weight)
        model[block] = (heaviest, now + heaviest * TOTAL, turn)
        order.advance(passed)
        now += passed
        assert sorted(order) == sorted(model)
        if passed % 3 == 0:
            soonest = min(expiry for _, expiry, _ in model.values())
            ties = {}
            for block, (weight, expiry, turn) in model.items():
                if expiry == soonest:
                    ties.setdefault(weight, []).append((turn, block))
            gone = order.pop()
            # Among equals of one weight, the one that came first.
            assert gone in [min(blocks)[1] for blocks in ties.values()]
            del model[gone]


def test_a_parent_that_stays_pinned_when_its_child_is_let_go_outlives_it() -> None:
    """Though the child was used long ago by somebody heavier than who used the parent since."""
    order = EvictionOrder(TOTAL)
    child, parent = 1, 0
    for block in (child, parent):
        keep(order, block, 1.0)
        order.pin(block)
    order.advance(TOTAL + 1)
    order.use(parent, 0.25)
    order.unpin([child], [parent])
    order.unpin([parent])
    assert [order.pop(), order.pop()] == [child, parent]
