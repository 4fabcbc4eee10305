"""Words of like meaning, in nine languages: what an order to a model is about, however it is worded.

Sets of attacks share few words, but nearly all of them disregard orders, reveal secrets, or pretend to have no limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import orjson

WORDS = Path(__file__).with_name("data") / "senses.json"
"""By sense, its words with spaces between them, each in one sense only."""
MARK = "\u2403"
"""What each feature begins with."""
REACH, APART = 5, 12
"""Senses before one that it is paired with, and the most words between the two."""
_ENDS = frozenset(".!?")


def senses(tokens: Sequence[str]) -> set[str]:
    """The senses of ``tokens``, lower-case words and signs, and the pairs of them in one sentence, in their order."""
    of = _of_words()
    found: set[str] = set()
    before: list[tuple[int, str]] = []
    for at, token in enumerate(tokens):
        if token in _ENDS:
            before.clear()
        elif (sense := of.get(token)) is not None:
            found.add(MARK + sense)
            found.update(MARK + first + MARK + sense for place, first in before if at - place <= APART)
            before.append((at, sense))
            del before[:-REACH]
    return found


@cache
def _of_words() -> Mapping[str, str]:
    listed: Mapping[str, str] = orjson.loads(WORDS.read_bytes())
    return {word: sense for sense, text in listed.items() for word in text.split()}
