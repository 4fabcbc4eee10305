from __future__ import annotations

import pytest

from engine.core.block_pool import BlockPool
from engine.core.block_tables import BlockTables
from engine.core.prefix_cache import PrefixCache
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams

BLOCK = 4


def make(blocks: int = 8) -> BlockTables:
    pool = BlockPool(blocks)
    return BlockTables(pool, PrefixCache(pool, BLOCK), BLOCK)


def opened(tables: BlockTables, number: int, prompt: list[int]) -> Request:
    request = Request(number, prompt, SamplingParams(max_tokens=9))
    assert tables.fits(request, tables.pool.available)
    tables.open(request)
    return request


def computed(tables: BlockTables, number: int, prompt: list[int]) -> Request:
    request = opened(tables, number, prompt)
    request.computed = len(prompt)
    tables.learn(request)
    return request


def test_it_fits_if_what_is_not_there_fits_and_what_is_cached_counts_too() -> None:
    tables = make(4)
    first = computed(tables, 1, list(range(9)))
    second = Request(2, [*range(8), 7], SamplingParams(max_tokens=1))
    assert tables.fits(second, 1)
    assert not tables.fits(second, 0)
    tables.close(first)
    assert tables.fits(second, 3)
    assert not tables.fits(second, 2)


def test_a_block_that_is_filled_later_is_found_then() -> None:
    tables = make()
    request = computed(tables, 1, list(range(6)))
    assert request.boundary == 2 * BLOCK
    request.tokens += [6, 7, 8]
    request.computed = 8
    tables.learn(request)
    assert request.boundary == 3 * BLOCK
    assert opened(tables, 2, list(range(9))).computed == 8


def test_what_is_written_next_is_ones_own() -> None:
    tables = make(4)
    leader = computed(tables, 1, list(range(6)))
    fork = Request(2, list(range(6)), SamplingParams(max_tokens=9))
    tables.share(leader, fork)
    assert fork.blocks == leader.blocks
    copies: list[tuple[int, int]] = []
    shared = leader.blocks[1]
    assert tables.grow(leader, 7, copies)
    assert tables.grow(fork, 7, copies)
    assert copies == [(shared, leader.blocks[1])]
    assert fork.blocks[1] == shared
    tables.check_integrity([leader, fork])


def test_a_copy_needs_a_block_and_takes_none_if_there_is_none() -> None:
    tables = make(2)
    leader = computed(tables, 1, list(range(6)))
    fork = Request(2, list(range(6)), SamplingParams(max_tokens=9))
    tables.share(leader, fork)
    assert not tables.grow(leader, 7, [])
    tables.check_integrity([leader, fork])
    tables.close(fork)
    assert tables.grow(leader, 7, copies := [])
    assert copies == []


def test_what_was_given_for_drafts_does_not_count_for_a_copy() -> None:
    tables = make(3)
    leader = computed(tables, 1, list(range(6)))
    leader.blocks += tables.pool.allocate(1)
    fork = Request(2, list(range(6)), SamplingParams(max_tokens=9))
    tables.share(leader, fork)
    assert not tables.grow(leader, 7, [])
    tables.check_integrity([leader, fork])
    assert tables.trim([leader])
    assert tables.grow(leader, 7, [])
    tables.check_integrity([leader, fork])


def test_only_what_is_held_beyond_need_is_taken_back() -> None:
    tables = make()
    request = computed(tables, 1, list(range(6)))
    assert not tables.trim([request])
    request.blocks += tables.pool.allocate(2)
    assert tables.trim([request])
    assert len(request.blocks) == 2
    tables.check_integrity([request])


@pytest.mark.parametrize(
    "damage",
    [
        lambda tables, request: request.blocks.pop(),
        lambda tables, request: request.blocks.append(request.blocks[0]),
        lambda tables, request: tables.pool.share(request.blocks),
        lambda tables, request: setattr(request, "computed", 99),
        lambda tables, request: request.blocks.reverse(),
    ],
    ids=["lost", "twice", "held by nobody", "beyond its blocks", "another order"],
)
def test_check_integrity_finds_what_does_not_agree(damage) -> None:
    tables = make()
    request = computed(tables, 1, list(range(8)))
    tables.check_integrity([request])
    damage(tables, request)
    with pytest.raises(AssertionError):
        tables.check_integrity([request])
