"""A question with its answer: what the makers of the corpus return."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Item:
    """``key`` is what is held out as a whole: the operands of a sum, say, or one fact in one wording."""

    kind: str
    question: str
    answer: str
    key: str


Maker = Callable[[random.Random], Item]
