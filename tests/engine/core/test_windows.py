"""Layers with a sliding window keep the window: blocks behind it are let go, and a prefix is found by its end."""

from __future__ import annotations

import pytest

from engine.core.block_demand import BlockDemand
from engine.core.block_pool import GONE, BlockPool
from engine.core.block_tables import BlockTables
from engine.core.plan import SamplerOutput
from engine.core.prefix_cache import PrefixCache
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import ContextLengthExceeded
from tests.engine.core.test_scheduler import BLOCK, make, request, step

Windows = tuple[int | None, ...]
TEXT = list(range(100))


def tables_of(windows: Windows, blocks: int = 100, budget: int = 16) -> BlockTables:
    pool, demand = BlockPool(blocks), BlockDemand(windows, BLOCK, budget)
    return BlockTables(pool, PrefixCache(pool, BLOCK, demand), BLOCK, demand)


def opened(tables: BlockTables, number: int, prompt: list[int]) -> Request:
    made = Request(number, prompt, SamplingParams(max_tokens=9))
    assert tables.fits(made, tables.pool.available)
    tables.open(made)
    tables.check_integrity([made])
    return made


def computed(tables: BlockTables, number: int, prompt: list[int], chunk: int = 16) -> Request:
    made = opened(tables, number, prompt)
    while made.missing:
        made.computed += min(chunk, made.missing)
        tables.learn(made)
        tables.check_integrity([made])
    return made


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(
    ("windows", "most", "last"),
    [
        ((None,), 512, 512),
        # The window and a step of 16 tokens while the prompt is computed, and then the window alone.
        ((256,), 64 + 5, 64),
        ((None, 256), 512 + 64 + 1, 512 + 64),
    ],
    ids=["all", "window", "both"],
)
def test_eight_windows_of_context_keep_one(windows: Windows, most: int, last: int, caching: bool) -> None:
    scheduler = make(blocks=2000, context=2049, windows=windows, prefix_caching=caching)
    scheduler.submit(request(1, 2000, generate=49))
    held = []
    while not scheduler.idle:
        plan = scheduler.schedule()
        held.append(scheduler.running[0].held)
        sampled = {scheduled.request_id: [1000] for scheduled in plan.requests if scheduled.sampling}
        scheduler.update(plan, SamplerOutput(sampled))
        scheduler.check_integrity()
    assert (max(held), held[-1]) == (most, last)


def test_a_pool_smaller_than_the_context_is_enough_for_a_window() -> None:
    scheduler = make(blocks=30, context=400, windows=(64,))
    scheduler.submit(request(1, 390, generate=10))
    scheduler.submit(request(2, 390, generate=10))
    while not scheduler.idle:
        plan, _ = step(scheduler)
        assert not plan.preempted
        scheduler.check_integrity()
    scheduler = make(blocks=30, context=400, windows=(None,))
    with pytest.raises(ContextLengthExceeded):
        scheduler.submit(request(1, 390, generate=10))


def test_without_preemption_windows_allow_more_requests() -> None:
    make(blocks=4 * 22, sequences=4, context=400, windows=(64,), preemption=False)
    with pytest.raises(ValueError, match="blocks for all sequences"):
        make(blocks=4 * 22, sequences=4, context=400, windows=(None,), preemption=False)


def test_behind_a_window_is_what_no_later_token_sees() -> None:
    demand = BlockDemand((None, 6), BLOCK, 8)
    # Token 9 sees tokens 4 to 9, and token 8 sees token 3.
    assert [demand.behind(0, computed) for computed in (0, 8, 9, 12, 13)] == [0, 0, 1, 1, 2]
    assert demand.next_behind(0, 1) == 13
    assert demand.spans == [2]
    assert [demand.of(length) for length in (4, 100)] == [2, 25 + 5]
    assert demand.longest(30, 1000) == 100
    assert demand.longest(30, 60) == 60
    assert demand.more(100, 20) == 5 + 3
    with pytest.raises(ValueError, match="come first"):
        BlockDemand((6, None), BLOCK)


@pytest.mark.parametrize("windows", [(9,), (None, 9), (None, None, 9, 3)])
def test_a_prefix_is_found_with_its_windows_alone(windows: Windows) -> None:
    tables = tables_of(windows)
    first = computed(tables, 1, TEXT[:41])
    tables.close(first)
    second = opened(tables, 2, TEXT[:41])
    assert second.computed == 40
    for table, window in zip((second.blocks, *second.others), windows, strict=True):
        seen = 10 if window is None else -(-(window - 1) // BLOCK)
        assert [block != GONE for block in table] == [False] * (10 - seen) + [True] * (seen + 1)
    tables.close(second)
    tables.check_integrity([])


def test_a_prefix_is_found_as_far_as_its_windows_are_there() -> None:
    tables = tables_of((None, 9))
    tables.close(computed(tables, 1, TEXT[:41]))
    prefixes = tables.prefixes
    assert prefixes is not None
    end = prefixes.match(prefixes.root(None), TEXT[:41])
    assert (end.depth, prefixes.usable(end).depth) == (10, 10)
    # A window sees two blocks: without the fourth, what ends with the fourth or the fifth is of no use.
    fourth = end
    while fourth.depth > 4:
        fourth = fourth.parent or fourth
    prefixes._evict(fourth.others[0])
    assert [prefixes.usable(node).depth for node in chain(end)] == [10, 9, 8, 7, 6, 3, 3, 3, 2, 1]
    assert fourth.alive


def chain(node):
    found = []
    while node.parent is not None:
        found.append(node)
        node = node.parent
    return found


def test_a_window_that_was_lost_is_registered_again_by_who_computes_it() -> None:
    tables = tables_of((None, 9))
    tables.close(computed(tables, 1, TEXT[:41]))
    prefixes = tables.prefixes
    assert prefixes is not None
    for node in chain(prefixes.match(prefixes.root(None), TEXT[:41])):
        tables.pool.discard(node.others[0])
        prefixes._evict(node.others[0])
    assert tables.hit_tokens(Request(2, TEXT[:41], SamplingParams(max_tokens=1))) == 0
    tables.close(computed(tables, 2, TEXT[:41]))
    assert tables.hit_tokens(Request(3, TEXT[:41], SamplingParams(max_tokens=1))) == 40
    # The same blocks of the group that sees all are found again.
    assert tables.pool.cached == 20


def test_without_a_group_that_sees_all_a_prefix_is_known_as_long_as_its_end() -> None:
    tables = tables_of((9,), blocks=12)
    tables.close(computed(tables, 1, TEXT[:41]))
    prefixes = tables.prefixes
    assert prefixes is not None and len(prefixes) == 10
    # Of the ten blocks the window's, which were let go last, go last.
    held = tables.pool.allocate(12 - 2)
    assert opened_hits(tables, TEXT[:41]) == 40
    assert len(prefixes) == 10
    held += tables.pool.allocate(1)
    assert opened_hits(tables, TEXT[:41]) == 0
    held += tables.pool.allocate(1)
    assert len(prefixes) == 0
    tables.pool.release(held)
    tables.check_integrity([])


def opened_hits(tables: BlockTables, prompt: list[int]) -> int:
    return tables.hit_tokens(Request(9, prompt, SamplingParams(max_tokens=1)))


def test_the_digest_leaves_out_what_has_lost_its_window() -> None:
    tables = tables_of((None, 9))
    made = computed(tables, 1, TEXT[:41])
    tables.mark(made)
    tables.close(made)
    prefixes = tables.prefixes
    assert prefixes is not None
    assert [tokens for _, tokens in prefixes.digest(9)] == [40]
    end = prefixes.match(prefixes.root(None), TEXT[:41])
    tables.pool.discard(end.others[0])
    prefixes._evict(end.others[0])
    assert prefixes.digest(9) == []
    tables.check_integrity([])


@pytest.mark.parametrize(
    "damage",
    [
        lambda tables, made: made.others[0].pop(),
        lambda tables, made: made.others[0].__setitem__(-1, GONE),
        lambda tables, made: made.blocks.__setitem__(0, GONE),
        lambda tables, made: setattr(made, "behind", 0),
        lambda tables, made: tables.prefixes._by_block.pop(made.others[0][-2]),
        lambda tables, made: setattr(made.chain, "children", 7),
    ],
    ids=["lost", "in the window", "sees all", "miscounted", "not registered", "children"],
)
def test_check_integrity_finds_what_does_not_agree(damage) -> None:
    tables = tables_of((None, 9))
    made = computed(tables, 1, TEXT[:41])
    damage(tables, made)
    with pytest.raises(AssertionError):
        tables.check_integrity([made])
