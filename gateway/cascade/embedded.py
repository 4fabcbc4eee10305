"""Complexity by words and by meaning: the classifier of this process, and a head on the sidecar's embedding."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import orjson

from gateway.cascade.complexity import CONTEXT, Classifier, quantile
from gateway.cascade.features import question_of
from gateway.sidecar.api import Sidecar, SidecarError
from gateway.text.linear import log_odds
from gateway.types import ChatRequest

HEAD = "complexity"
FIGURES = Path(__file__).parents[1] / "sidecar" / "heads" / "complexity.json"
PATIENCE = 0.05
"""Seconds that a route is worth; then the words alone decide."""
SHARE = 0.5
"""Of the head, in the mean of both log-odds; chosen by cross-validation (``training/complexity_head.py``)."""


class Embedded:
    """A ``Judge`` that costs no forward pass where a guard or a cache embeds the same question.

    Where the sidecar is away, slow, busy or loading, it says what ``words`` alone says.
    """

    def __init__(self, words: Classifier, sidecar: Sidecar, quantiles: Sequence[float]) -> None:
        self._words = words
        self._sidecar = sidecar
        self._quantiles = quantiles
        """Of both together, at evenly spaced shares of the training questions."""

    @classmethod
    def load(cls, words: Classifier, sidecar: Sidecar) -> Self:
        """Raises ``OSError`` or ``ValueError`` if the installation is damaged."""
        return cls(words, sidecar, orjson.loads(FIGURES.read_bytes())["quantiles"])

    async def complexity(self, request: ChatRequest) -> float:
        text, length = question_of(request)
        try:
            async with asyncio.timeout(PATIENCE):
                (windows,) = await self._sidecar.score(HEAD, [text])
        except (SidecarError, TimeoutError):
            return self._words.score(text, length)
        # The head has learned from the beginnings of questions: one window of them.
        meaning = log_odds(windows[0].scores["lost"], 1e-6)
        both = SHARE * meaning + (1 - SHARE) * self._words.of_question(text)
        context = CONTEXT * math.log1p(max(length - len(text), 0) / 1000)
        return quantile(both + context, self._quantiles)
