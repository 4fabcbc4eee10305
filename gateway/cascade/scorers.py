"""What tells how much a request asks of a model, by what is there to tell it: each is a ``ComplexityScorer``.

Test questions are scored by what was learned from such, with the meaning of the question where a sidecar embeds it; all
else by the kind of task.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import orjson

from gateway.cascade.cascade import ComplexityScorer
from gateway.cascade.complexity import CONTEXT, ComplexityClassifier, quantile
from gateway.cascade.features import question_of
from gateway.cascade.task_kind import demand
from gateway.sidecar.api import Sidecar, SidecarError
from gateway.text.linear import log_odds
from gateway.types import ChatRequest

HEAD = "complexity"
FIGURES = Path(__file__).parents[1] / "sidecar" / "heads" / "complexity.json"
TIMEOUT = 0.05
"""Seconds to wait for the sidecar; then the classifier alone decides."""
SHARE = 0.5
"""Of the head, in the mean of both log-odds; chosen by cross-validation (``training/complexity_head.py``)."""


class EmbeddingScorer:
    """By words and by meaning: this process's classifier, and a head on the sidecar's embedding.

    It costs no forward pass where a guard or a cache embeds the same question. Where the sidecar is down, slow, busy or
    loading, the score is the classifier's alone.
    """

    def __init__(
        self, classifier: ComplexityClassifier, sidecar: Sidecar, quantiles: Sequence[float]
    ) -> None:
        self._classifier = classifier
        self._sidecar = sidecar
        self._quantiles = quantiles
        """Of both together, at evenly spaced shares of the training questions."""

    @classmethod
    def load(cls, classifier: ComplexityClassifier, sidecar: Sidecar) -> Self:
        """Raises ``OSError`` or ``ValueError`` if the installation is damaged."""
        return cls(classifier, sidecar, orjson.loads(FIGURES.read_bytes())["quantiles"])

    async def complexity(self, request: ChatRequest) -> float:
        text, length = question_of(request)
        try:
            async with asyncio.timeout(TIMEOUT):
                (windows,) = await self._sidecar.score(HEAD, [text])
        except (SidecarError, TimeoutError):
            return self._classifier.score(text, length)
        # The head has learned from the beginnings of questions: one window of them.
        meaning = log_odds(windows[0].scores["lost"], 1e-6)
        both = SHARE * meaning + (1 - SHARE) * self._classifier.of_question(text)
        context = CONTEXT * math.log1p(max(length - len(text), 0) / 1000)
        return quantile(both + context, self._quantiles)


_OPTION = re.compile(r"^\s*\(?[A-Ea-e][.):] ", re.MULTILINE)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_ASKS = re.compile(
    r"\b(?:how (?:many|much|long|far|old|fast)|what (?:is|was|will|percent\w*|fraction))\b[^?]*\?\W*$",
    re.IGNORECASE,
)


def is_test_question(text: str) -> bool:
    """Whether ``text`` is such as the weights were trained on: options to choose from, or an English word problem."""
    if len(_OPTION.findall(text)) >= 3:
        return True
    return 60 <= len(text) <= 1500 and len(_NUMBER.findall(text)) >= 2 and _ASKS.search(text) is not None


class RequestScorer:
    """Scores any request. The weights know test questions only: of other texts their scores say next to nothing."""

    def __init__(self, trained: ComplexityScorer) -> None:
        self._trained = trained

    async def complexity(self, request: ChatRequest) -> float:
        text, length = question_of(request)
        return await self._trained.complexity(request) if is_test_question(text) else demand(text, length)
