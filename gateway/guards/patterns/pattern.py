"""A pattern, and the words around a match that speak for or against it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.guards.finding import Finding

Find = Callable[[str], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Pattern:
    """How one entity is found. Finding takes time linear in the text, whatever the text."""

    entity: str
    """Presidio's name."""
    longest: int
    """Characters of the longest that is sure to be found, with the words before it that decide."""
    find: Find
    """All candidates with their scores, in order, perhaps overlapping those of other patterns."""


class Context:
    """Words that, shortly before a match, make it likely or unlikely: the nearest one decides."""

    BEFORE = 48
    """Characters before a match that are looked at."""
    AFTER = 12

    def __init__(self, words: str, against: str = "", after: str = "") -> None:
        """Each is a list of regular expressions with white space between; ``after`` may follow the match."""
        for_it, against_it, behind = ("|".join(each.split()) or "(?!)" for each in (words, against, after))
        self._before = re.compile(
            rf"(?:(?<!\w)|(?<=_))(?:(?P<word>{for_it})|(?P<against>{against_it}))", re.IGNORECASE
        )
        self._after = re.compile(rf"[\s\\,;()\-]{{0,4}}(?:{behind})(?!\w)", re.IGNORECASE) if after else None

    def __call__(self, text: str, start: int, end: int) -> int:
        """1 where the words speak for it, -1 where they speak against it, 0 where they say nothing."""
        nearest = 0
        for match in self._before.finditer(text, max(0, start - self.BEFORE), start):
            nearest = 1 if match["word"] else -1
        if nearest <= 0 and self._after and self._after.match(text, end, end + self.AFTER):
            return 1
        return nearest
