"""Scores any request: test questions by what was learned from such, all else by the kind of task."""

from __future__ import annotations

import re

from gateway.cascade.cascade import ComplexityScorer
from gateway.cascade.features import question_of
from gateway.cascade.task_kind import demand
from gateway.types import ChatRequest

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
    """A ``ComplexityScorer``. The weights know test questions only: of other texts their scores say next to nothing."""

    def __init__(self, trained: ComplexityScorer) -> None:
        self._trained = trained

    async def complexity(self, request: ChatRequest) -> float:
        text, length = question_of(request)
        return await self._trained.complexity(request) if is_test_question(text) else demand(text, length)
