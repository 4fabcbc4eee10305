from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.block_pool import BlockPool


def test_cached_blocks_are_taken_back_least_recently_used_first() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    pool.release([blocks[1]], keep=True)
    pool.release([blocks[0]], keep=True)
    pool.release([blocks[2]])
    assert (pool.free, pool.cached, pool.used) == (1, 2, 0)
    assert pool.allocate(2) == [blocks[2], blocks[1]]
    pool.share([blocks[0]])
    assert (pool.free, pool.cached, pool.used) == (0, 0, 3)


def test_a_shared_block_stays_until_the_last_holder_lets_go() -> None:
    pool = BlockPool(1)
    pool.share(block := pool.allocate(1))
    pool.release(block)
    assert pool.used == 1
    pool.release(block)
    assert pool.free == 1


@pytest.mark.parametrize(
    "mistake",
    [
        lambda pool: pool.allocate(3),
        lambda pool: pool.release([1]),
        lambda pool: pool.share([1]),
        lambda pool: BlockPool(0),
    ],
)
def test_mistakes_are_refused(mistake) -> None:
    pool = BlockPool(2)
    assert pool.allocate(1) == [0]
    with pytest.raises(ValueError, match="block"):
        mistake(pool)


def test_check_integrity_finds_a_block_that_was_lost_or_is_in_two_places() -> None:
    pool = BlockPool(2)
    pool._free.pop()
    with pytest.raises(AssertionError):
        pool.check_integrity()
    pool = BlockPool(2)
    pool._cached.use(0, 1.0)
    pool._cached.add(0)
    with pytest.raises(AssertionError):
        pool.check_integrity()


class PoolMachine(RuleBasedStateMachine):
    """Any order of calls against a plain count of who holds what."""

    @initialize(total=st.integers(1, 12))
    def start(self, total: int) -> None:
        self.pool = BlockPool(total)
        self.held: dict[int, int] = {}
        self.kept: set[int] = set()

    @rule(count=st.integers(0, 6))
    def allocate(self, count: int) -> None:
        if count > self.pool.available:
            with pytest.raises(ValueError, match="available"):
                self.pool.allocate(count)
            return
        for block in self.pool.allocate(count):
            assert block not in self.held
            self.kept.discard(block)
            self.held[block] = 1

    @precondition(lambda self: self.held or self.kept)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.kept | set(self.held))))
        self.pool.share([block])
        self.kept.discard(block)
        self.held[block] = self.held.get(block, 0) + 1

    @precondition(lambda self: self.held)
    @rule(data=st.data(), keep=st.booleans())
    def release(self, data: st.DataObject, keep: bool) -> None:
        block = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.release([block], keep=keep)
        self.held[block] -= 1
        if not self.held[block]:
            del self.held[block]
            if keep:
                self.kept.add(block)

    @invariant()
    def sums_up(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity()
        assert self.pool.used == len(self.held)
        assert self.pool.cached == len(self.kept)
        assert self.pool.free + self.pool.cached + self.pool.used == self.pool.total


TestPool = PoolMachine.TestCase
