"""Short texts beside long ones: what waits for what, by the order of events and not by time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.sidecar.api import TENANT, SidecarBusy, SidecarError
from gateway.sidecar.batcher import SHORT, TEXT_COST, Batcher, LengthBatcher, text_cost

pytestmark = pytest.mark.anyio

LONG = "x" * (SHORT + 1)
WINDOW = 1050
"""Characters of what the shipped embedder reads at once."""


class Model:
    """Gives each text's length. Long ones wait for ``gate``."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.failing = False

    def __call__(self, texts: Sequence[str]) -> list[int]:
        self.batches.append(list(texts))
        if any(len(text) > SHORT for text in texts):
            assert self.gate.wait(60)
        if self.failing:
            raise ValueError("no")
        return [len(text) for text in texts]


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
async def batcher(model: Model) -> AsyncIterator[LengthBatcher[int]]:
    with ThreadPoolExecutor(1) as short, ThreadPoolExecutor(1) as long:
        each = (
            Batcher(model, thread, cost=text_cost, max_batch=16, max_queue=20) for thread in (short, long)
        )
        batcher = LengthBatcher(*each)
        yield batcher
        model.gate.set()
        await batcher.aclose()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def asked(batcher: LengthBatcher[int], tenant: str, *texts: str) -> list[int]:
    TENANT.set(tenant)
    return await batcher.get(texts)


async def test_a_short_text_does_not_wait_for_a_long_one(model: Model, batcher: LengthBatcher[int]) -> None:
    long = asyncio.create_task(asked(batcher, "mallory", LONG))
    await until(lambda: model.batches)
    assert await asked(batcher, "alice", "short") == [5]
    assert await asked(batcher, "mallory", "x" * SHORT) == [SHORT], "nor the same tenant's"
    assert not long.done()
    model.gate.set()
    assert await long == [SHORT + 1]


async def test_texts_of_both_kinds_are_answered_in_their_order(
    model: Model, batcher: LengthBatcher[int]
) -> None:
    model.gate.set()
    texts = ["a", LONG, "bb", LONG + "y", "ccc", LONG]
    assert await batcher.get(texts) == [len(text) for text in texts]
    assert await batcher.get([]) == []
    assert (batcher.computed, len(batcher)) == (5, 0), "equal ones once"
    for batch in model.batches:
        assert len({len(text) > SHORT for text in batch}) == 1, "long and short are never computed together"


async def test_what_fails_of_either_kind_is_told(model: Model, batcher: LengthBatcher[int]) -> None:
    model.failing = True
    model.gate.set()
    with pytest.raises(SidecarError):
        await batcher.get(["a", LONG])
    model.failing = False
    with pytest.raises(SidecarBusy):
        await batcher.get(["a", *(LONG + str(n) for n in range(21))])
    await until(lambda: not len(batcher))


async def test_who_leaves_waits_for_neither(model: Model, batcher: LengthBatcher[int]) -> None:
    first = asyncio.create_task(batcher.get([LONG]))
    await until(lambda: model.batches)
    leaving = asyncio.create_task(batcher.get(["a", LONG + "1", LONG + "2"]))
    await until(lambda: len(batcher) == 2)
    leaving.cancel()
    await until(lambda: len(batcher) == 0)
    model.gate.set()
    await first
    assert [batch for batch in model.batches if LONG + "1" in batch] == []


async def test_windows_of_long_texts_take_turns_one_by_one(model: Model, batcher: LengthBatcher[int]) -> None:
    """Whoever comes with a long text waits for two windows of another's at most, however many there are."""
    flood = [asyncio.create_task(asked(batcher, "mallory", f"{number:>{WINDOW}}")) for number in range(16)]
    await until(lambda: len(batcher) == 15)
    mine = asyncio.create_task(asked(batcher, "alice", "y" * WINDOW))
    await until(lambda: len(batcher) == 16)
    model.gate.set()
    await mine
    assert {len(batch) for batch in model.batches} == {1}
    assert ["y" * WINDOW] in model.batches[:3]
    await asyncio.gather(*flood)


async def test_tiny_texts_cost_more_than_their_characters(model: Model, batcher: LengthBatcher[int]) -> None:
    """Sixteen of one character are as much work as a window of a thousand."""
    await batcher.get([str(number) for number in range(10, 26)])
    assert max(map(len, model.batches)) == 1024 // (TEXT_COST + 2)
