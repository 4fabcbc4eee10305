from __future__ import annotations

from hashlib import blake2b
from struct import pack

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core import prefix_cache
from engine.core.block_pool import BlockPool
from engine.core.prefix_cache import Node, PrefixCache
from tests.examples import examples

BLOCK = 2


def make(blocks: int = 10) -> tuple[BlockPool, PrefixCache]:
    pool = BlockPool(blocks)
    return pool, PrefixCache(pool, BLOCK)


def compute(pool: BlockPool, cache: PrefixCache, tokens: list[int], adapter: str | None = None):
    """Someone's chain and blocks once all tokens are computed."""
    chain = cache.match(cache.root(adapter), tokens)
    blocks = cache.take(chain)
    blocks += pool.allocate(-(-len(tokens) // BLOCK) - len(blocks))
    return cache.extend(chain, tokens, blocks, len(tokens)), blocks


def found(cache: PrefixCache, tokens: list[int], adapter: str | None = None) -> int:
    """Blocks."""
    return cache.match(cache.root(adapter), tokens).depth


def test_full_blocks_are_found_while_held_and_after() -> None:
    pool, cache = make()
    chain, blocks = compute(pool, cache, [1, 2, 3, 4, 5])
    assert found(cache, [1, 2, 3, 4, 5]) == 2
    assert found(cache, [1, 2, 3, 9, 5]) == 1
    assert found(cache, [9, 2, 3, 4, 5]) == 0
    cache.release(chain, blocks, 1.0)
    assert (pool.free, pool.cached) == (8, 2)
    assert cache.take(cache.match(cache.root(None), [1, 2, 3, 4, 9, 9])) == blocks[:2]
    cache.check_integrity()


def test_the_last_token_is_never_found() -> None:
    pool, cache = make()
    compute(pool, cache, [1, 2, 3, 4])
    assert [found(cache, [1, 2, 3, 4][:length]) for length in (1, 2, 3, 4)] == [0, 0, 1, 1]
    assert found(cache, [1, 2, 3, 4, 5]) == 2


def test_the_same_tokens_elsewhere_are_another_block() -> None:
    pool, cache = make()
    compute(pool, cache, [1, 2, 3, 4])
    assert found(cache, [3, 4, 1, 2, 9]) == 0


def test_adapters_share_nothing() -> None:
    pool, cache = make()
    compute(pool, cache, [1, 2, 3], "a")
    assert found(cache, [1, 2, 3]) == 0
    assert found(cache, [1, 2, 3], "b") == 0
    assert found(cache, [1, 2, 3], "a") == 1


def test_a_key_is_believed_only_if_parent_and_tokens_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hash that takes everything for the same."""
    monkeypatch.setattr(prefix_cache, "block_key", lambda parent, tokens: b"collides")
    pool, cache = make()
    chain, _ = compute(pool, cache, [1, 2, 3, 4, 5])
    assert chain.depth == 1
    assert found(cache, [1, 2, 7, 7]) == 1
    assert found(cache, [3, 4, 7]) == 0
    assert found(cache, [1, 2, 1, 2, 1, 2, 5]) == 1
    other, _ = compute(pool, cache, [8, 8, 9])
    assert other.depth == 0
    cache.check_integrity()


def test_a_key_that_collides_further_down_is_not_believed_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the tokens of the block itself count: the same block after two different ones has the same key."""
    monkeypatch.setattr(
        prefix_cache, "block_key", lambda parent, tokens: tokens if tokens else b"root" + parent
    )
    pool, cache = make()
    compute(pool, cache, [1, 1, 5, 5])
    assert found(cache, [1, 1, 5, 5, 0]) == 2
    compute(pool, cache, [2, 2, 6, 6])
    assert found(cache, [2, 2, 5, 5, 0]) == 1


def test_of_two_that_computed_the_same_one_gives_its_block_back() -> None:
    pool, cache = make()
    first, second = pool.allocate(2), pool.allocate(2)
    tokens = [1, 2, 3, 4]
    root = cache.root(None)
    cache.extend(root, tokens, first, 4)
    table = list(second)
    chain = cache.extend(root, tokens, table, 3)
    assert table == [first[0], second[1]]
    assert (chain.depth, pool.used, pool.holders(first[0])) == (1, 3, 2)


def test_the_end_of_a_chain_goes_first() -> None:
    pool, cache = make(4)
    chain, blocks = compute(pool, cache, list(range(8)))
    cache.release(chain, blocks, 1.0)
    tokens = [*range(8), 9]
    assert found(cache, tokens) == 4
    for left in (3, 2, 1, 0):
        pool.allocate(1)
        assert found(cache, tokens) == left
        cache.check_integrity()


def test_a_heavy_prefix_outlives_a_light_one_that_is_newer() -> None:
    pool, cache = make(4)
    for number, weight in ((1, 4.0), (2, 1.0)):
        chain, blocks = compute(pool, cache, [number] * 4)
        cache.release(chain, blocks, weight)
    pool.release(pool.allocate(2))
    assert found(cache, [1] * 5) == 2
    assert found(cache, [2] * 5) == 0


def test_a_light_prefix_outlives_a_heavy_one_that_nobody_uses() -> None:
    """After (4 - 1) * 4 blocks were handed out."""
    pool, cache = make(4)
    chain, blocks = compute(pool, cache, [1] * 4)
    cache.release(chain, blocks, 4.0)
    for _ in range(7):
        pool.release(pool.allocate(2))
    chain, blocks = compute(pool, cache, [2] * 4)
    cache.release(chain, blocks, 1.0)
    pool.release(pool.allocate(2))
    assert found(cache, [1] * 5) == 0
    assert found(cache, [2] * 5) == 2


def test_a_search_goes_on_from_what_was_known_and_is_left() -> None:
    pool, cache = make(4)
    chain, blocks = compute(pool, cache, list(range(8)))
    cache.release(chain, blocks, 1.0)
    pool.allocate(2)
    assert not chain.alive
    assert cache.match(chain, [*range(8), 9]).depth == 2
    known = cache.match(cache.root(None), [0, 1, 2])
    assert cache.match(known, [*range(8), 9]).depth == 2


def test_taking_what_nobody_holds_makes_fewer_available() -> None:
    pool, cache = make()
    chain, blocks = compute(pool, cache, list(range(8)))
    cache.take(chain.parent.parent)
    cache.release(chain, blocks, 1.0)
    assert cache.unheld(chain) == 2
    assert cache.unheld(cache.root(None)) == 0


def test_a_forgotten_adapter_leaves_free_blocks_and_those_in_use_to_their_holders() -> None:
    pool, cache = make()
    chain, blocks = compute(pool, cache, [1, 2, 3, 4], "a")
    held, table = compute(pool, cache, [1, 2, 9, 9], "a")
    other, rest = compute(pool, cache, [1, 2, 3])
    cache.release(chain, blocks, 1.0)
    cache.forget("a")
    cache.check_integrity()
    assert (pool.cached, pool.used) == (0, 4)
    assert found(cache, [1, 2, 3, 4, 5], "a") == 0
    assert cache.match(held, [1, 2, 9, 9, 9]).depth == 0
    assert cache.extend(held, [1, 2, 9, 9, 8, 8], table, 4) is held
    cache.release(held, table, 1.0)
    cache.release(other, rest, 1.0)
    assert (pool.cached, pool.used) == (1, 0)
    assert found(cache, [1, 2, 3]) == 1
    cache.forget("never seen")


def key(adapter: str, tokens: list[int]) -> int:
    """The recipe as the module tells it."""
    found = blake2b(adapter.encode(), digest_size=8).digest()
    for start in range(0, len(tokens), BLOCK):
        packed = pack(f"<{BLOCK}I", *tokens[start : start + BLOCK])
        found = blake2b(found + packed, digest_size=8).digest()
    return int.from_bytes(found, "little")


def test_the_digest_names_ends_and_partings_last_used_first() -> None:
    pool, cache = make(20)
    system = [7, 7, 8, 8]
    for number in (1, 2):
        chain, _ = compute(pool, cache, [*system, number, number])
        cache.mark(chain)
    assert cache.digest(9) == [
        (key("", [*system, 2, 2]), 6),
        (key("", system), 4),
        (key("", [*system, 1, 1]), 6),
    ]
    assert cache.digest(1) == [(key("", [*system, 2, 2]), 6)]
    chain, _ = compute(pool, cache, [100_000, 2**32 - 1], "a")
    cache.mark(chain)
    assert cache.digest(1) == [(key("a", [100_000, 2**32 - 1]), 2)]
    # The recipe itself must not change: gateways know it.
    assert key("", [1, 2]) == 0xC7036499877909A9


def test_the_digest_forgets_what_is_gone() -> None:
    pool, cache = make(2)
    chain, blocks = compute(pool, cache, [1, 2, 3, 4])
    cache.mark(chain)
    cache.release(chain, blocks, 1.0)
    pool.allocate(1)
    assert cache.digest(9) == []
    cache.mark(chain)
    assert cache.digest(9) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda pool, cache, node: cache._by_block.pop(node.block),
        lambda pool, cache, node: cache._nodes.pop(node.key),
        lambda pool, cache, node: setattr(node, "tokens", b"other"),
        lambda pool, cache, node: setattr(node, "depth", 5),
        lambda pool, cache, node: setattr(node.parent, "alive", False),
        lambda pool, cache, node: pool.discard(node.block),
        lambda pool, cache, node: pool.share([node.block]),
        lambda pool, cache, node: pool.release(pool.allocate(1), keep=True),
    ],
    ids=["by block", "by key", "tokens", "depth", "parent", "free", "held alone", "cached, not known"],
)
def test_check_integrity_finds_what_does_not_agree(damage) -> None:
    pool, cache = make()
    chain, blocks = compute(pool, cache, [1, 2, 3, 4, 5])
    cache.release(chain, blocks, 1.0)
    cache.check_integrity()
    damage(pool, cache, chain)
    with pytest.raises(AssertionError):
        cache.check_integrity()


class CacheMachine(RuleBasedStateMachine):
    """Holders that come and go, against what each block was last filled with."""

    @initialize(blocks=st.integers(4, 12))
    def start(self, blocks: int) -> None:
        self.pool, self.cache = make(blocks)
        self.held: list[tuple[Node, list[int], list[int], float]] = []
        self.content: dict[int, tuple[int, ...]] = {}
        """All tokens up to each block's end."""

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9),
        weight=st.sampled_from([1.0, 4.0]),
    )
    def compute(self, tokens: list[int], weight: float) -> None:
        chain = self.cache.match(self.cache.root(None), tokens)
        needed = -(-len(tokens) // BLOCK) - chain.depth
        if needed + self.cache.unheld(chain) > self.pool.available:
            return
        blocks = self.cache.take(chain)
        for index, block in enumerate(blocks):
            assert self.content[block] == tuple(tokens[: (index + 1) * BLOCK])
        blocks += self.pool.allocate(needed)
        for index in range(chain.depth, len(blocks)):
            self.content[blocks[index]] = tuple(tokens[: (index + 1) * BLOCK])
        known = self.cache.extend(chain, tokens, blocks, len(tokens))
        assert known.depth == len(tokens) // BLOCK
        self.held.append((known, tokens, blocks, weight))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        chain, _, blocks, weight = self.held.pop(index)
        self.cache.release(chain, blocks, weight)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity()
        self.cache.check_integrity()
        counts: dict[int, int] = {}
        for chain, tokens, blocks, _ in self.held:
            assert self.cache.match(self.cache.root(None), [*tokens, 0]).depth >= chain.depth
            for index, block in enumerate(blocks):
                counts[block] = counts.get(block, 0) + 1
                assert self.content[block] == tuple(tokens[: (index + 1) * BLOCK])
        assert self.pool.used == len(counts)
        assert all(self.pool.holders(block) == count for block, count in counts.items())


CacheMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestCache = CacheMachine.TestCase


def salted(pool: BlockPool, cache: PrefixCache, tokens: list[int], salt: bytes, shared: int = 0) -> int:
    """Blocks that were found of what is then computed, and let go."""
    chain = cache.match(cache.root(None), tokens, salt, shared)
    hits, blocks = chain.depth, cache.take(chain)
    blocks += pool.allocate(-(-len(tokens) // BLOCK) - len(blocks))
    cache.release(cache.extend(chain, tokens, blocks, len(tokens), salt, shared), blocks, 1.0)
    cache.check_integrity()
    return hits


def test_salts_tell_equal_prompts_apart() -> None:
    pool, cache = make(20)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    assert salted(pool, cache, prompt, b"a") == 0
    assert salted(pool, cache, prompt, b"b") == 0
    assert salted(pool, cache, prompt, b"") == 0
    assert [salted(pool, cache, prompt, salt) for salt in (b"a", b"b", b"")] == [3, 3, 3]
    assert len(cache) == 9


@pytest.mark.parametrize(("shared", "blocks"), [(0, 0), (1, 0), (2, 1), (5, 2), (6, 3), (100, 3)])
def test_what_is_everybodys_is_found_by_everybody_up_to_the_block_that_it_does_not_fill(
    shared: int, blocks: int
) -> None:
    pool, cache = make(20)
    prompt = [1, 2, 3, 4, 5, 6, 7]
    assert salted(pool, cache, prompt, b"a", shared) == 0
    assert salted(pool, cache, prompt, b"b", shared) == blocks
    assert salted(pool, cache, prompt, b"b", shared) == 3
    # Where one shares more than another, they part where the first of them begins to be himself.
    assert salted(pool, cache, prompt, b"c", 4) == min(blocks, 2)


def test_a_salt_is_put_before_the_tokens_of_the_first_block_alone() -> None:
    """The recipe that the documentation tells."""
    pool, cache = make()
    salted(pool, cache, [1, 2, 3, 4, 5], b"salt", 0)
    cache.mark(cache.match(cache.root(None), [1, 2, 3, 4, 5], b"salt"))
    root = blake2b(b"", digest_size=8).digest()
    first = blake2b(root + b"salt" + pack("<2I", 1, 2), digest_size=8).digest()
    second = blake2b(first + pack("<2I", 3, 4), digest_size=8).digest()
    assert cache.digest(1) == [(int.from_bytes(second, "little"), 4)]
