"""Vectors by id: exact for few, by clusters for many, and the same set of ids on the way from one to the other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("faiss")

from gateway.sidecar.semantic.alignment import Floats
from gateway.sidecar.semantic.vectors import Vectors
from tests.examples import examples

WIDTH = 16


class Inline(Executor):
    """Runs what is submitted when the test says so; ``error`` is what it fails with."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: work(*arguments)))
        return future

    def run(self) -> None:
        for future, work in self.waiting:
            if self.error is not None:
                future.set_exception(self.error)
            else:
                future.set_result(work())
        self.waiting = []


class Kept:
    """``Vectors`` beside what they should be."""

    def __init__(self, executor: Executor, *, exact_up_to: int = 30, clusters: int = 4) -> None:
        self.known: dict[int, Floats] = {}
        self.vectors = Vectors(
            WIDTH, lambda number: self.known[number], executor, exact_up_to=exact_up_to, clusters=clusters
        )

    def add(self, number: int) -> None:
        one = np.random.default_rng(number).standard_normal(WIDTH).astype(np.float32)
        self.known[number] = one / np.linalg.norm(one)
        self.vectors.add(number, self.known[number])

    def remove(self, number: int) -> None:
        self.vectors.remove(number)
        del self.known[number]

    def found(self, number: int, count: int = 1) -> list[int]:
        return self.vectors.search(self.known[number][None], count)[0]


def test_few_are_searched_exactly() -> None:
    kept = Kept(Inline())
    assert kept.vectors.search(np.ones((2, WIDTH), dtype=np.float32), 3) == [[], []]
    for number in range(20):
        kept.add(number)
    query = np.ones((1, WIDTH), dtype=np.float32)
    expected = sorted(kept.known, key=lambda number: -float(kept.known[number] @ query[0]))
    assert kept.vectors.search(query, 5) == [expected[:5]]
    assert kept.vectors.is_exact


def test_many_are_searched_by_clusters_and_look_ups_never_wait_for_the_training() -> None:
    executor = Inline()
    kept = Kept(executor)
    for number in range(40):
        kept.add(number)
    assert kept.vectors.is_exact and len(executor.waiting) == 1
    assert [kept.found(number) for number in range(40)] == [[number] for number in range(40)]
    executor.run()
    kept.found(0)  # the training is seen
    kept.found(0)  # all are copied
    assert not kept.vectors.is_exact
    assert [kept.found(number) for number in kept.known] == [[number] for number in kept.known]


def test_clusters_are_trained_again_when_there_are_four_times_as_many() -> None:
    executor = Inline()
    kept = Kept(executor)
    trained = 0
    for number in range(600):
        kept.add(number)
        trained += len(executor.waiting)
        executor.run()
    assert trained == 3  # at 31, 121 and 481
    assert sum(kept.found(number) == [number] for number in range(600)) >= 590


def test_a_training_that_fails_leaves_the_search_exact(caplog: pytest.LogCaptureFixture) -> None:
    executor = Inline(MemoryError("no memory"))
    kept = Kept(executor)
    for number in range(40):
        kept.add(number)
    executor.run()
    assert kept.found(7) == [7]
    assert kept.vectors.is_exact
    assert "cannot be trained" in caplog.text


@given(
    st.lists(st.tuples(st.sampled_from(("add", "remove", "train", "look")), st.integers(0, 60)), max_size=150)
)
@settings(max_examples=examples(60))
def test_what_is_removed_is_never_found_and_what_is_there_always(actions: list[tuple[str, int]]) -> None:
    executor = Inline()
    kept = Kept(executor, exact_up_to=8, clusters=2)
    for action, number in actions:
        if action == "add" and number not in kept.known:
            kept.add(number)
        elif action == "remove" and number in kept.known:
            kept.remove(number)
        elif action == "train":
            executor.run()
        found = kept.vectors.search(np.ones((1, WIDTH), dtype=np.float32), 100)[0]
        assert sorted(found) == sorted(kept.known)  # fewer clusters than are searched: recall is 1
        assert len(kept.vectors) == len(kept.known)
