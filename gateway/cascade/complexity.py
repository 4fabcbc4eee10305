"""How likely a small model fails where a large one succeeds: a logistic regression over words and shape.

``python -m training.complexity`` writes the weights; ``docs/cascade.md`` has its accuracy.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson

from gateway.cascade.features import question_of, shape, words
from gateway.text.linear import LinearModel, Measures
from gateway.types import ChatRequest

WEIGHTS = Path(__file__).with_name("complexity.json")
CONTEXT = 0.1
"""What the context around a question adds to its log-odds: this times ln(1 + characters / 1000).

Set by hand, as the training data holds single questions only: 0.07 for 1,000 characters, 0.46 for 100,000, where the
middle half of the training questions is 0.8 wide.
"""


class Weights(NamedTuple):
    """What training learns. The three lists have an entry for each of ``features.SHAPE``."""

    words: Mapping[str, float]
    shape: Sequence[float]
    low: Sequence[float]
    """Measures below this, or above ``high``, count as this: training saw nothing beyond."""
    high: Sequence[float]
    bias: float
    quantiles: Sequence[float]
    """Log-odds at evenly spaced shares of the training traffic, from the lowest to the highest."""


class ComplexityClassifier:
    """Scores requests in this process; about 0.1 ms for a question of 1,000 characters."""

    def __init__(self, weights: Weights) -> None:
        self._quantiles = weights.quantiles
        self._model = LinearModel(
            [weights.bias],
            {word: (weight,) for word, weight in weights.words.items()},
            lambda _, known: math.sqrt(known),
        )
        self._measures = Measures(weights.shape, weights.low, weights.high)

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> ComplexityClassifier:
        """Reads a weights file. Raises ``OSError`` or ``ValueError`` where it cannot."""
        return cls(Weights(**orjson.loads(path.read_bytes())))

    async def complexity(self, request: ChatRequest) -> float:
        return self.score(*question_of(request))

    def score(self, text: str, length: int) -> float:
        """0 to 1: the share of the training questions that look easier than ``text``.

        ``length`` is that of the whole conversation, in characters; what is not ``text`` counts as its context.
        """
        return quantile(self.log_odds(text, length), self._quantiles)

    def log_odds(self, text: str, length: int) -> float:
        context = CONTEXT * math.log1p(max(length - len(text), 0) / 1000)
        return self.of_question(text) + context

    def of_question(self, text: str) -> float:
        """The learned part of the log-odds."""
        return self._model.log_odds(words(text))[0] + self._measures.total(shape(text))


def quantile(value: float, knots: Sequence[float]) -> float:
    """Where ``value`` stands among the ascending, evenly spaced ``knots``: 0 at the first, 1 at the last."""
    above = bisect_right(knots, value)
    if above == 0 or above == len(knots):
        return float(above > 0)
    low, high = knots[above - 1], knots[above]
    return (above - 1 + (value - low) / (high - low)) / (len(knots) - 1)
