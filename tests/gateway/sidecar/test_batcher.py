from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.sidecar.api import SidecarBusy, SidecarDown, SidecarError
from gateway.sidecar.batcher import Batcher, text_cost

pytestmark = pytest.mark.anyio


class Model:
    """Gives each text in capitals; while ``gate`` is shut it takes its time."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, texts: Sequence[str]) -> list[str]:
        self.batches.append(list(texts))
        if not self.gate.wait(10):
            raise TimeoutError
        if "bad" in texts:
            raise ValueError("the text was: bad")
        return [text.upper() for text in texts]


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
async def batcher(model: Model) -> AsyncIterator[Batcher[str, str]]:
    with ThreadPoolExecutor(1) as executor:
        batcher = Batcher(
            model, executor, cost=text_cost, max_batch=4, max_queue=6, max_cost=350, remembered=3
        )
        yield batcher
        model.gate.set()
        await batcher.aclose()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def busy(model: Model, batcher: Batcher[str, str]) -> asyncio.Task[list[str]]:
    """The model is at work on a text of its own."""
    model.gate.clear()
    task = asyncio.create_task(batcher.get(["busy"]))
    await until(lambda: model.batches)
    return task


async def test_what_waits_is_computed_together_by_length(model: Model, batcher: Batcher[str, str]) -> None:
    first = await busy(model, batcher)
    others = [asyncio.create_task(batcher.get([text])) for text in ("ccc", "a", "bb")]
    await until(lambda: len(batcher) == 3)
    model.gate.set()
    assert [await task for task in (first, *others)] == [["BUSY"], ["CCC"], ["A"], ["BB"]]
    assert model.batches == [["busy"], ["a", "bb", "ccc"]]


async def test_a_batch_is_bounded_in_texts_and_characters(model: Model, batcher: Batcher[str, str]) -> None:
    assert len(await batcher.get([str(n) for n in range(6)])) == 6
    await batcher.get(["x" * 130, "y" * 130])  # each counts for some more than its characters
    await batcher.get(["z" * 500])
    assert [len(batch) for batch in model.batches] == [4, 2, 1, 1, 1]


async def test_equal_texts_share_one_computation(model: Model, batcher: Batcher[str, str]) -> None:
    first = await busy(model, batcher)
    again = asyncio.create_task(batcher.get(["busy", "busy", "new", "new"]))
    await until(lambda: len(batcher) == 1)
    model.gate.set()
    assert await again == ["BUSY", "BUSY", "NEW", "NEW"]
    assert await first == ["BUSY"]
    assert model.batches == [["busy"], ["new"]]


async def test_the_latest_are_remembered_and_no_more(model: Model, batcher: Batcher[str, str]) -> None:
    for text in ("a", "b", "c", "a", "d", "a", "b"):
        assert await batcher.get([text]) == [text.upper()]
    assert model.batches == [["a"], ["b"], ["c"], ["d"], ["b"]]


async def test_a_full_queue_takes_all_texts_or_none(model: Model, batcher: Batcher[str, str]) -> None:
    first = await busy(model, batcher)
    waiting = asyncio.create_task(batcher.get(["1", "2", "3", "4"]))
    await until(lambda: len(batcher) == 4)
    with pytest.raises(SidecarBusy):
        await batcher.get(["5", "6", "7"])
    assert len(batcher) == 4
    joined = asyncio.create_task(batcher.get(["1", "2", "3", "4", "5"]))
    await until(lambda: len(batcher) == 5)
    model.gate.set()
    assert await waiting == (await joined)[:4] == ["1", "2", "3", "4"]
    await first


async def test_cancelled_work_is_not_computed(model: Model, batcher: Batcher[str, str]) -> None:
    first = await busy(model, batcher)
    given_up = asyncio.create_task(batcher.get(["mine", "shared"]))
    stays = asyncio.create_task(batcher.get(["shared"]))
    await until(lambda: len(batcher) == 2)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert len(batcher) == 1
    model.gate.set()
    assert await stays == ["SHARED"]
    assert model.batches == [["busy"], ["shared"]]
    await first


async def test_what_was_taken_up_can_be_cancelled_and_asked_for_again(
    model: Model, batcher: Batcher[str, str]
) -> None:
    first = await busy(model, batcher)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    again = asyncio.create_task(batcher.get(["busy"]))
    await asyncio.sleep(0)
    model.gate.set()
    assert await again == ["BUSY"]
    assert model.batches == [["busy"]]


async def test_a_failure_is_told_without_the_text_and_is_not_remembered(
    model: Model, batcher: Batcher[str, str]
) -> None:
    with pytest.raises(SidecarError, match=r"^the model failed \(ValueError\)$"):
        await batcher.get(["bad", "good"])
    assert await batcher.get(["good"]) == ["GOOD"]


async def test_at_the_end_nobody_is_left_waiting(model: Model, batcher: Batcher[str, str]) -> None:
    tasks = [await busy(model, batcher), asyncio.create_task(batcher.get(["queued"]))]
    await until(lambda: len(batcher) == 1)
    model.gate.set()
    await batcher.aclose()
    for task in tasks:
        with pytest.raises(SidecarDown):
            await task
