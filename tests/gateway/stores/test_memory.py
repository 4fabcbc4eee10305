from __future__ import annotations

import tracemalloc
from collections.abc import Coroutine
from typing import Any

import orjson
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.stores.memory import ENTRY, MemoryStore

pytestmark = pytest.mark.anyio

BOUND = 40 + 3 * ENTRY


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits: an event loop for each step would take most of the time."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waited")


class AgainstAModel(RuleBasedStateMachine):
    """The store beside the plainest one that could keep its promises."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.store = MemoryStore(max_bytes=BOUND, clock=lambda: self.now)
        self.model: dict[str, tuple[bytes, float]] = {}

    @rule(
        key=st.sampled_from("abcd"),
        value=st.sampled_from([0, 1, 12, 13, 40, BOUND, BOUND + 2]).map(bytes),
        ttl=st.floats(0, 10),
    )
    def put(self, key: str, value: bytes, ttl: float) -> None:
        at_once(self.store.put({key: value}, ttl))
        self.model.pop(key, None)
        self.model[key] = (value, self.now + ttl)
        while sum(ENTRY + len(k) + len(v) for k, (v, _) in self.model.items()) > BOUND:
            self.model.pop(next(iter(self.model)))

    @rule(key=st.sampled_from("abcde"))
    def get(self, key: str) -> None:
        value, expires = self.model.get(key, (None, 0.0))
        if expires <= self.now:
            self.model.pop(key, None)
            value = None
        assert at_once(self.store.get(key)) == value

    @rule(seconds=st.floats(0, 5))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def the_count_of_bytes_is_right(self) -> None:
        held = sum(ENTRY + len(key) + len(value) for key, (value, _) in self.store._values.items())
        assert self.store._bytes == held <= BOUND


test_against_a_model = AgainstAModel.TestCase


async def test_the_oldest_go_first() -> None:
    store = MemoryStore(max_bytes=3 * (ENTRY + 10))
    for key in "abcd":
        await store.put({key: b"x" * 9}, 60)
    assert [key for key in "abcd" if await store.get(key)] == ["b", "c", "d"]


async def test_empty_values_are_bounded_too() -> None:
    store = MemoryStore(max_bytes=10 * (ENTRY + 10))
    for number in range(1000):
        await store.put({f"{number:010}": b""}, 60)
    assert len(store._values) == 10


async def test_what_is_too_large_is_not_kept() -> None:
    store = MemoryStore(max_bytes=ENTRY + 10)
    await store.put({"k": b"x" * 11}, 60)
    assert await store.get("k") is None


@pytest.mark.parametrize("size", [20, 800])
def test_it_takes_the_memory_that_it_counts(size: int) -> None:
    """Values come from orjson, whose results keep more memory than they have bytes."""
    store, written = MemoryStore(max_bytes=2**20), {"text": "x" * size}
    tracemalloc.start()
    try:
        for number in range(6000):
            at_once(store.put({f"key {number}": orjson.dumps(written)}, 60.0 + number))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 * 2**20 < taken < 1.3 * 2**20
