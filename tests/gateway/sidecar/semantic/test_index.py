"""The semantic index: what it finds, what it refuses, what it removes, and that nothing leaves its partition."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("faiss")

from gateway.sidecar.api import LookupResult, SidecarBusy
from gateway.sidecar.semantic.entries import IndexEntries, IndexEntry
from gateway.sidecar.semantic.index import SemanticIndex
from gateway.sidecar.semantic.verifier import Verifier
from tests.examples import examples

pytestmark = pytest.mark.anyio

WIDTH = 384
MIB = 2**20
NO_TRAINING = ThreadPoolExecutor(1)
"""Starts no thread, as nothing is submitted."""


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def vector(text: str) -> np.ndarray:
    """Alike where the letters' triples are alike: enough to be near."""
    found = np.zeros(WIDTH, dtype=np.float32)
    padded = f"  {text.lower()}  "
    for start in range(len(padded) - 2):
        digest = hashlib.blake2b(padded[start : start + 3].encode(), digest_size=2).digest()
        found[int.from_bytes(digest, "little") % WIDTH] += 1
    return found / max(float(np.linalg.norm(found)), 1e-6)


async def embed(texts: Sequence[str]) -> list[bytes]:
    return [vector(text).astype("<f4").tobytes() for text in texts]


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    return Verifier.load()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def index(verifier: Verifier, clock: Clock) -> SemanticIndex:
    return SemanticIndex(embed, None, MIB, 1000, verifier=verifier, clock=clock)


async def test_the_same_question_hits(index: SemanticIndex, clock: Clock) -> None:
    await index.remember("p", "How do tides work?", b"the moon", key="k", ttl=60)
    clock.now += 5
    look = await index.look_up("p", "How do tides work?", budget=0.05)
    assert look.hit is not None
    assert look.hit.payload == b"the moon"
    assert look.hit.age == pytest.approx(5)
    assert look.hit.confidence == 1.0
    assert look.hit.similarity == pytest.approx(1, abs=1e-3)


async def test_a_threshold_of_one_means_the_same_question(verifier: Verifier) -> None:
    """In float32 the cosine of a vector with itself may be just below 1."""

    async def scattered(texts: Sequence[str]) -> list[bytes]:
        drawn = (np.random.default_rng(len(text)).normal(size=WIDTH).astype("<f4") for text in texts)
        return [(one / np.linalg.norm(one)).astype("<f4").tobytes() for one in drawn]

    index = SemanticIndex(scattered, None, MIB, 1000, verifier=verifier)
    questions = ["How do tides work" + "?" * count for count in range(16)]
    for question in questions:
        await index.remember(question, question, b"the moon", key="k", ttl=60)
    looks = [await index.look_up(question, question, budget=0.05, floor=1.0) for question in questions]
    assert [look.reason for look in looks] == ["hit"] * len(questions)
    assert min(look.similarity or 0.0 for look in looks) < 1


async def test_case_and_punctuation_do_not_matter(index: SemanticIndex) -> None:
    await index.remember("p", "How do tides work?", b"the moon", key="k", ttl=60)
    assert (await index.look_up("p", "how do tides work", budget=0.05)).hit is not None


async def test_what_is_missing_has_its_reason(index: SemanticIndex) -> None:
    assert (await index.look_up("p", "What is 2 plus 3?", budget=0.05)).reason == "empty"
    await index.remember("p", "What is 2 plus 3?", b"5", key="k", ttl=60)
    refused = await index.look_up("p", "What is 2 plus 4?", budget=0.05)
    assert (refused.hit, refused.reason) == (None, "number")
    assert refused.similarity is not None and refused.similarity > 0.8
    assert (
        await index.look_up("p", "Who painted the ceiling of the chapel?", budget=0.05)
    ).reason == "unlike"


async def test_the_floor_holds(index: SemanticIndex) -> None:
    await index.remember("p", "How do tides work?", b"the moon", key="k", ttl=60)
    assert (await index.look_up("p", "how do the tides work", budget=0.3, floor=0.999)).reason == "unlike"


async def test_a_budget_of_nothing_serves_only_the_same(index: SemanticIndex) -> None:
    await index.remember("p", "How can I learn to swim?", b"practice", key="k", ttl=60)
    assert (await index.look_up("p", "How do I learn to swim?", budget=0.0)).reason == "doubt"
    assert (await index.look_up("p", "How can I learn to swim?", budget=0.0)).hit is not None


async def test_a_restated_question_replaces_its_entry(index: SemanticIndex) -> None:
    for payload in (b"old", b"new"):
        await index.remember("p", "How do tides work?", payload, key=payload.decode(), ttl=60)
    look = await index.look_up("p", "How do tides work?", budget=0.05)
    assert look.hit is not None and look.hit.payload == b"new"
    assert len(index) == 1
    await index.forget("p", "old")
    assert len(index) == 1


async def test_forgotten_entries_are_gone(index: SemanticIndex) -> None:
    await index.remember("p", "How do tides work?", b"the moon", key="k", ttl=60)
    await index.remember("q", "How do tides work?", b"the sun", key="k", ttl=60)
    await index.forget("p", "k")
    assert (await index.look_up("p", "How do tides work?", budget=0.05)).reason == "empty"
    assert (await index.look_up("q", "How do tides work?", budget=0.05)).hit is not None
    await index.forget("q", "k")
    assert (len(index), index.size) == (0, 0)


async def test_expired_entries_are_gone(index: SemanticIndex, clock: Clock) -> None:
    await index.remember("p", "How do tides work?", b"the moon", key="k", ttl=60)
    clock.now += 61
    assert (await index.look_up("p", "How do tides work?", budget=0.05)).reason == "empty"
    assert (len(index), index.size) == (0, 0)


async def test_what_was_not_used_goes_first(verifier: Verifier, clock: Clock) -> None:
    index = SemanticIndex(embed, None, MIB, 2, verifier=verifier, clock=clock)
    for question in ("How do tides work?", "Why is snow white?"):
        await index.remember("p", question, b"x", key=question, ttl=60)
    await index.look_up("p", "How do tides work?", budget=0.05)
    await index.remember("p", "Where do eels breed?", b"x", key="third", ttl=60)
    assert (await index.look_up("p", "How do tides work?", budget=0.05)).hit is not None
    assert (await index.look_up("p", "Why is snow white?", budget=0.05)).hit is None


async def test_bytes_are_bounded_and_what_is_too_large_is_not_kept(verifier: Verifier, clock: Clock) -> None:
    index = SemanticIndex(embed, None, 20_000, 1000, verifier=verifier, clock=clock)
    await index.remember("p", "How do tides work?", b"x" * 30_000, key="k", ttl=60)
    assert len(index) == 0
    for number in range(20):
        await index.remember("p", f"What is {number}?", b"x" * 1000, key=str(number), ttl=60)
        assert index.size <= 20_000
    assert 2 <= len(index) < 20


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(("add", "forget", "wait")),
        st.sampled_from(("p", "q", "r")),
        st.integers(0, 6),
        st.integers(1, 40),
    ),
    max_size=40,
)


@given(ACTIONS)
@settings(max_examples=examples(60))
def test_entries_are_those_that_were_added_and_not_removed(actions: list[tuple[str, str, int, int]]) -> None:
    entries, model, now = IndexEntries(MIB, 1000, NO_TRAINING), {}, 0.0
    for action, partition, number, seconds in actions:
        question = f"question {number}"
        if action == "add":
            entries.add(
                IndexEntry(partition, question, vector(question), b"x", f"k{number % 3}", now, now + seconds)
            )
            model[partition, question] = (f"k{number % 3}", now + seconds)
        elif action == "forget":
            for entry in entries.named(partition, f"k{number % 3}"):
                entries.remove(entry)
            model = {
                at: kept for at, kept in model.items() if (at[0], kept[0]) != (partition, f"k{number % 3}")
            }
        else:
            now += seconds
            entries.expire(now)
            model = {at: kept for at, kept in model.items() if kept[1] > now}
        assert {(entry.partition, entry.question) for entry in entries} == set(model)
        assert entries.size == sum(entry.size for entry in entries)
        for name in ("p", "q", "r"):
            (near,) = entries.nearest(name, vector("question 3")[None], 8)
            assert {entry.question for _, entry in near} == {at[1] for at in model if at[0] == name}
            assert all(
                similar == pytest.approx(float(vector("question 3") @ entry.vector), abs=1e-5)
                for similar, entry in near
            )


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_look_ups_that_are_given_up_are_not_computed(
    verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = SemanticIndex(embed, None, MIB, 1000, verifier=verifier)
    await index.remember("p", "How do tides work?", b"the moon", key="k", ttl=60)
    batches: list[int] = []
    gate = threading.Event()
    nearest = IndexEntries.nearest
    judged: list[str] = []
    judge = verifier.judge

    def judging(asked: str, *others: Any, threshold: float) -> Any:
        judged.append(asked)
        return judge(asked, *others, threshold=threshold)

    monkeypatch.setattr(verifier, "judge", judging)
    monkeypatch.setattr("gateway.sidecar.semantic.index.LEAST_SIMILAR", -1.0)

    def slowly(self: IndexEntries, partition: str, queries: np.ndarray, count: int) -> Any:
        batches.append(len(queries))
        assert gate.wait(60)
        return nearest(self, partition, queries, count)

    monkeypatch.setattr(IndexEntries, "nearest", slowly)
    first = asyncio.create_task(index.look_up("p", "How do tides work?", budget=0.05))
    await until(lambda: batches == [1])
    others = [asyncio.create_task(index.look_up("p", f"What is {n}?", budget=0.05)) for n in range(100)]
    await until(lambda: index.queued == 100)
    for task in others[3:]:
        task.cancel()
    await asyncio.gather(*others[3:], return_exceptions=True)
    assert index.queued == 3
    first.cancel()  # in the middle of its batch: the verifier is not asked any more
    await asyncio.gather(first, return_exceptions=True)
    gate.set()
    assert [(await task).hit for task in others[:3]] == [None] * 3
    assert batches == [1, 3]
    assert judged == ["What is 0?", "What is 1?", "What is 2?"]
    await index.aclose()


async def test_look_ups_beyond_the_queue_are_refused(
    verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.sidecar.semantic.index.QUEUE", 2)
    index = SemanticIndex(embed, None, MIB, 1000, verifier=verifier)
    found = await asyncio.gather(
        *(index.look_up("p", f"What is {n}?", budget=0.05) for n in range(8)), return_exceptions=True
    )
    assert {type(one) for one in found} == {LookupResult, SidecarBusy}
    await index.aclose()


async def test_a_look_tells_the_projection_of_its_question_where_that_is_wanted(index: SemanticIndex) -> None:
    looks = [
        await index.look_up("p", question, budget=0.05, projects=projects)
        for question, projects in (
            ("How do tides work?", True),
            ("Why is snow white?", True),
            ("Why?", False),
        )
    ]
    assert [len(one.projection) for one in looks] == [8, 8, 0]
    assert looks[0].projection != looks[1].projection
