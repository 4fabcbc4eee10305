"""A pattern, and the context words that make a match more or less likely."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gateway.findings import Finding

Find = Callable[[str], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Pattern:
    """How one entity is found, in time linear in the text."""

    entity: str
    """Presidio's name."""
    longest: int
    """Characters of the longest one that is sure to be found, context words included."""
    find: Find
    """All candidates with their scores, in order, perhaps overlapping those of other patterns."""
    needs: str = ""
    """A class of characters (for a regular expression) of which every candidate has one; empty: not known."""


class ContextWords:
    """Words shortly before a match that make it likely or unlikely; the nearest decides."""

    BEFORE = 48
    """Characters before a match that are read."""
    AFTER = 12

    def __init__(self, words: str, against: str = "", after: str = "") -> None:
        """Each is a list of regular expressions with white space between; ``after`` may follow the match."""
        for_it, against_it, behind = ("|".join(each.split()) or "(?!)" for each in (words, against, after))
        self._before = re.compile(
            rf"(?=[^\s\d.,:;()+-])(?:(?<!\w)|(?<=_))(?:(?P<word>{for_it})|(?P<against>{against_it}))",
            re.IGNORECASE,
        )
        self._after = re.compile(rf"[\s\\,;()\-]{{0,4}}(?:{behind})(?!\w)", re.IGNORECASE) if after else None

    def of(self, text: str) -> ContextReader:
        return ContextReader(self._before, self._after, text)


class ContextReader:
    """The context of matches in the text's order. Each word is read once."""

    __slots__ = ("_after", "_before", "_nearest", "_read", "_text", "_where")

    def __init__(self, before: re.Pattern[str], after: re.Pattern[str] | None, text: str) -> None:
        self._before, self._after, self._text = before, after, text
        self._read = 0
        self._where = self._nearest = 0

    def __call__(self, start: int, end: int) -> int:
        """1 if context words speak for a match, -1 if they speak against it, 0 if there are none."""
        first = max(0, start - ContextWords.BEFORE)
        for match in self._before.finditer(self._text, max(first, self._read), start):
            self._where = match.start()
            self._nearest = 1 if match["word"] else -1
        self._read = max(self._read, start)
        nearest = self._nearest if self._where >= first else 0
        if nearest <= 0 and self._after and self._after.match(self._text, end, end + ContextWords.AFTER):
            return 1
        return nearest
