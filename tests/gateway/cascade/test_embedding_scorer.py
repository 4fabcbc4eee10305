"""Complexity by words and meaning, and by words alone where the sidecar cannot be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.cascade.complexity import ComplexityClassifier
from gateway.cascade.scorers import EmbeddingScorer
from gateway.sidecar.api import Scored, SidecarBusy
from gateway.sidecar.client import NoSidecar
from gateway.types import ChatRequest
from tests.sidecars import SidecarProcess

pytestmark = pytest.mark.anyio

EASY = "What is the capital of France?"
HARD = (
    "A farmer sells 14 crates of apples at $12 each and spends a third of the money on seed. He then buys 5 tools at "
    "$7.50 each and shares what is left among 3 children. How many dollars does each child get?"
)


def asked(text: str) -> ChatRequest:
    return ChatRequest("m", messages=({"role": "user", "content": text},))


class Head(NoSidecar):
    """Says the same of every text, or nothing."""

    def __init__(self, lost: float | None) -> None:
        self._lost = lost
        self.texts: list[str] = []

    async def score(self, head: str, texts: Sequence[str]) -> list[list[Scored]]:
        assert head == "complexity"
        self.texts += texts
        if self._lost is None:
            await asyncio.sleep(30)
        return [[Scored(0, len(text), {"lost": self._lost or 0.0})] for text in texts]


class Busy(NoSidecar):
    async def score(self, head: str, texts: Sequence[str]) -> list[list[Scored]]:
        raise SidecarBusy("full")


@pytest.mark.parametrize("sidecar", [NoSidecar(), Busy(), Head(None)], ids=["absent", "busy", "silent"])
async def test_the_words_decide_where_the_sidecar_cannot(sidecar: NoSidecar) -> None:
    words = ComplexityClassifier.load()
    judge = EmbeddingScorer.load(words, sidecar)
    for text in (EASY, HARD):
        assert await judge.complexity(asked(text)) == words.score(text, len(text))


async def test_the_meaning_counts() -> None:
    words = ComplexityClassifier.load()
    easy, hard = [
        await EmbeddingScorer.load(words, Head(lost)).complexity(asked("Tell me more."))
        for lost in (0.01, 0.9)
    ]
    assert 0 <= easy < hard <= 1


async def test_a_long_conversation_counts_as_harder() -> None:
    judge = EmbeddingScorer.load(ComplexityClassifier.load(), Head(0.2))
    long = ChatRequest(
        "m", messages=({"role": "user", "content": "x " * 40_000}, {"role": "user", "content": EASY})
    )
    assert await judge.complexity(long) > await judge.complexity(asked(EASY))


async def test_the_real_head_tells_easy_from_hard(sidecar: SidecarProcess) -> None:
    client = sidecar.client()
    judge = EmbeddingScorer.load(ComplexityClassifier.load(), client)
    easy, hard = await judge.complexity(asked(EASY)), await judge.complexity(asked(HARD))
    await client.aclose()
    assert easy < hard
