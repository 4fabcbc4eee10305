"""Who gets a slot for its adapter, and who gives one up."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.adapter_slots import AdapterSlots
from engine.core.block_pool import BlockPool
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from tests.engine.core.fake_worker import FakeWorker
from tests.examples import examples


class Memory:
    """Has what was asked for before the last ``delay`` times."""

    def __init__(self, most: int = 100, *, delay: int = 0, has: str = "") -> None:
        self.most = most
        self.wanted: list[str] = []
        self.kept: list[str] = []
        self._held = set(has)
        self._coming = deque([set[str]()] * delay)

    def has(self, key: str) -> bool:
        return key in self._held

    def want(self, keys: Sequence[str], keep: Collection[str]) -> None:
        self.wanted, self.kept = list(keys), list(keep)
        self._coming.append(set(keys))
        self._held = (self._held & {*keys, *keep}) | self._coming.popleft()


def request(number: int, adapter: str | None, tokens: int = 4, **options: object) -> Request:
    one = Request(number, [1, 2, 0], SamplingParams(tokens), adapter=adapter, submitted=number, **options)  # type: ignore[arg-type]
    one.rank = (number, number)
    return one


def scheduler(slots: AdapterSlots, sequences: int = 4, **options: object) -> Scheduler:
    return Scheduler(
        BlockPool(200),
        block_size=4,
        max_num_seqs=sequences,
        max_batched_tokens=64,
        max_model_len=64,
        max_waiting=1000,
        adapters=slots,
        **options,  # type: ignore[arg-type]
    )


def admit(slots: AdapterSlots, key: str, *others: Request, weight: float = 1.0) -> None:
    slots.begin([], [request(1000, key), *others])
    assert slots.admits(key)
    slots.take(key, weight)
    slots.take_swaps()


def test_the_least_recently_used_slot_is_taken_weighted() -> None:
    slots = AdapterSlots(3, Memory())
    for key in "abc":
        admit(slots, key)
    admit(slots, "a")
    admit(slots, "d")
    assert [key for key in "abcd" if key in slots] == ["a", "c", "d"]
    admit(slots, "c", weight=4.0)
    for key in "efghi":
        admit(slots, key)
    # It outlives those that came after it, and not for ever.
    assert "c" in slots and "a" not in slots
    for key in "klmnopq":
        admit(slots, key)
    assert "c" not in slots
    assert (slots.hits, slots.swaps) == (2, 16)


def test_only_the_first_adapters_take_in_requests() -> None:
    slots = AdapterSlots(2, Memory())
    running = [request(1, "a"), request(2, "b")]
    slots.begin([], running)
    for one in running:
        slots.take(one.adapter or "", 1.0)
    assert slots.take_swaps() == [(0, "a"), (1, "b")]
    waiting = [request(3, "c"), request(4, "a"), request(5, None)]
    slots.begin(running, waiting)
    # Both run, and are before c: those that come later run beside them.
    assert [slots.admits(key) for key in ("a", "b", "c", None)] == [True, True, False, True]
    # a's first has ended: c is before what waits for a. Its slot is free as soon as none runs that uses it.
    running = [request(2, "b"), request(4, "a")]
    slots.begin(running, [request(3, "c"), request(6, "a")])
    assert [slots.admits(key) for key in ("a", "b", "c")] == [False, True, False]
    slots.begin(running[:1], [request(3, "c"), request(6, "a")])
    assert [slots.admits(key) for key in ("a", "b", "c")] == [False, True, True]
    slots.take("c", 1.0)
    assert slots.take_swaps() == [(0, "c")]


def test_what_is_being_read_holds_nobody_up() -> None:
    memory = Memory(has="a")
    slots = AdapterSlots(1, memory, ["a"])
    memory._coming.append(set())
    slots.begin([], [request(1, "b"), request(2, "a")])
    assert memory.wanted == ["b", "a"]
    assert not slots.admits("b") and slots.admits("a")


def test_a_plan_that_was_not_launched_is_made_up_for() -> None:
    memory = Memory()
    slots = AdapterSlots(1, memory)
    slots.begin([], [request(1, "a")])
    slots.take("a", 1.0)
    swaps = slots.take_swaps()
    slots.undo(swaps)
    slots.begin([request(1, "a")], [request(2, "b")])
    assert memory.kept == ["a"] and slots.take_swaps() == swaps == [(0, "a")]
    # Where the one that it was for is gone, nobody needs it.
    slots.undo(swaps)
    slots.begin([], [request(2, "b")])
    assert memory.kept == [] and "a" not in slots
    slots.take("b", 1.0)
    slots.forget("b")
    assert slots.take_swaps() == [] and len(slots) == 0
    slots.check_integrity([])
    with pytest.raises(AssertionError, match="without a slot"):
        slots.check_integrity([request(3, "b")])


@settings(max_examples=examples(100))
@given(
    data=st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=60
    ),
    slots=st.integers(1, 3),
    sequences=st.integers(1, 6),
    delay=st.integers(0, 2),
)
def test_every_answer_is_as_if_alone_and_comes(
    data: list[tuple[int, int, int]], slots: int, sequences: int, delay: int
) -> None:
    """With (adapter, tokens, steps until the next), most of one adapter; what is read comes ``delay`` steps later."""
    bank = AdapterSlots(slots, Memory(slots + 1, delay=delay))
    made, worker = scheduler(bank, sequences), FakeWorker(4)
    answers: dict[int, list[int]] = {}
    wanted: dict[int, list[int]] = {}
    coming = deque(data)
    pause, number, steps = 0, 0, 0
    while coming or not made.idle:
        while coming and not pause:
            adapter, tokens, pause = coming.popleft()
            # Lengths of names tell adapters apart for the worker; those of 3 and more are popular.
            key = "x" * (adapter + 1) if adapter < 3 else "popular"
            number += 1
            params = SamplingParams(tokens)
            made.submit(Request(number, [1, 2, adapter % 3], params, adapter=key, submitted=number))
            answers[number], wanted[number] = [], worker.answer([1, 2, adapter % 3], params, key)
        pause = max(0, pause - 1)
        plan = made.schedule()
        assert len({one.adapter for one in plan.requests}) <= slots
        for output in made.update(plan, worker.execute(plan)):
            answers[output.request_id] += output.tokens
        made.check_integrity()
        steps += 1
        assert steps < 100 + 20 * len(data), "somebody starves"
    assert answers == wanted


def test_a_popular_adapter_does_not_keep_another_out() -> None:
    """One slot; requests for one adapter never cease, and another is asked for once."""
    bank = AdapterSlots(1, Memory())
    made, worker = scheduler(bank, 2), FakeWorker(4)
    for number in range(1, 5):
        made.submit(Request(number, [1, 2], SamplingParams(5), adapter="popular", submitted=number))
    made.submit(Request(5, [1, 2], SamplingParams(5), adapter="rare", submitted=5))
    number, ended = 5, list[int]()
    for _ in range(40):
        number += 1
        made.submit(Request(number, [1, 2], SamplingParams(5), adapter="popular", submitted=number))
        plan = made.schedule()
        ended += [output.request_id for output in made.update(plan, worker.execute(plan)) if output.finish]
    # After the four before it, and one that was admitted beside the last of them.
    assert ended.index(5) <= 5
    assert bank.swaps >= 3
