"""Numbers that a state gives to persons: forms, a check, and the words around."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gateway.findings import Finding
from gateway.pii.patterns.pattern import ContextWords, Pattern

_SEPARATORS = str.maketrans("", "", " .-/")
_OTHERS = r"""
    order invoice tracking serial part model sku zip ticket timestamp receipt isbn issn ean upc imei build commit
    bestell rechnung commande pedido factura
"""
"""Words for numbers of things."""


class Form(NamedTuple):
    """How a number is written, as regular expressions. Texts are searched for ``first`` alone, which is fast where it
    is a digit, and there looked at both ways."""

    rest: str
    first: str = r"\d"
    before: str = ""
    """What stands before ``first``, always as many characters."""
    width: int = 0
    """Of ``before``."""

    def compiled(self) -> re.Pattern[str]:
        begins = f"(?<={self.before}{self.first})" if self.before else ""
        return re.compile(
            rf"{self.first}{begins}(?<![\w.,+/-]{self.before}{self.first}){self.rest}(?![\w-]|[.,/]\d)",
            re.ASCII | re.IGNORECASE,
        )


def numbered(
    entity: str,
    forms: Sequence[Form],
    is_valid: Callable[[str], bool],
    words: str,
    *,
    alone: float = 0.0,
    written: float | None = None,
    only_with: str = "",
    longest: int,
) -> Pattern:
    """``is_valid`` is given a match in upper case without its separators.

    ``alone`` is the score of a match around which nothing says what it is, ``written`` that of one with separators; at
    0 it is none. ``only_with`` are words in lower case of which the text must hold one.
    """
    patterns = [(form.width, form.compiled()) for form in forms]
    context = ContextWords(words, _OTHERS)
    needed = tuple(only_with.split())

    def find(text: str) -> Iterator[Finding]:
        if needed:
            lowered = text.lower()
            if not any(word in lowered for word in needed):
                return
        for width, pattern in patterns:
            surroundings = context.of(text)
            for match in pattern.finditer(text):
                start, end = match.start() - width, match.end()
                number = text[start:end].translate(_SEPARATORS).upper()
                if not is_valid(number):
                    continue
                spoken_of = surroundings(start, end)
                score = alone if written is None or len(number) == end - start else written
                if spoken_of > 0 or score:
                    yield Finding(entity, start, end, 0.95 if spoken_of > 0 else 0.3 if spoken_of else score)

    return Pattern(entity, longest + ContextWords.BEFORE, find, needs="0-9")


def is_date(year: int, month: int, day: int) -> bool:
    """Whether there may be such a day; in a leap year too, if ``year`` may be one."""
    days = 29 if year % 4 == 0 else 28
    return 1 <= month <= 12 and 1 <= day <= (days if month == 2 else 30 if month in (4, 6, 9, 11) else 31)
