"""Edits of a text: which characters are replaced, and by what."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

_UNFIT = re.compile(r"[^A-Z0-9_]")


@lru_cache(1024)
def shown(label: str) -> str:
    """A label as it is written into a text."""
    return _UNFIT.sub("_", label.upper())


class Edit(NamedTuple):
    """``[start, end)`` is to be replaced by a name for the finding."""

    start: int
    end: int
    label: str
    size: int
    """Characters of the finding that gave the label; where findings overlap, the longest names them all."""
    reversible: bool = False
    text: str | None = None
    """What is to stand there; None: a name for the finding."""

    @property
    def name(self) -> str:
        """What stands there, unless it is reversible."""
        return f"[{shown(self.label)}]" if self.text is None else self.text

    def within(self, start: int, end: int) -> Edit:
        """The part of it in ``[start, end)``. What stands for the whole of it does not stand for a part."""
        first, last = max(self.start, start), min(self.end, end)
        text = self.text if (first, last) == (self.start, self.end) else None
        return self._replace(start=first, end=last, text=text)


def merged(edits: Iterable[Edit]) -> list[Edit]:
    """In order and without overlaps: those that overlap become one that covers them all."""
    whole: list[Edit] = []
    for edit in sorted(edits):
        if whole and edit.start < whole[-1].end:
            last = whole[-1]
            named = edit if edit.size > last.size else last
            start, end = last.start, max(last.end, edit.end)
            text = named.text if (start, end) == (named.start, named.end) else None
            whole[-1] = named._replace(start=start, end=end, text=text)
        else:
            whole.append(edit)
    return whole


def applied(text: str, edits: Iterable[Edit], replacements: Iterable[str]) -> str:
    """``text`` with each edit (in order, without overlaps) replaced."""
    parts: list[str] = []
    done = 0
    for edit, replacement in zip(edits, replacements, strict=True):
        parts += (text[done : edit.start], replacement)
        done = edit.end
    return "".join((*parts, text[done:]))


class Offsets:
    """Where the characters of a text are after parts of it were replaced."""

    __slots__ = ("_replaced",)

    def __init__(self) -> None:
        self._replaced: list[tuple[int, int, int]] = []

    def replace(self, start: int, end: int, length: int) -> None:
        """``[start, end)`` became ``length`` characters. To be called in order."""
        self._replaced.append((start, end, length))

    def of(self, position: int) -> int:
        """Where ``position`` is now; inside a replaced part, where the replacement begins."""
        moved = position
        for start, end, length in self._replaced:
            if start >= position:
                break
            moved += length - (end - start) if end <= position else start - position
        return moved


_NOTABLE = re.compile(r'\\(?:u[0-9a-fA-F]{0,4}|.)?|"', re.DOTALL)
_STRUCTURE = frozenset("{}[],: \t\r\n")


class JsonCursor:
    """Follows JSON text that comes in pieces, so that it stays JSON when parts of it are replaced."""

    __slots__ = ("_left", "_owed", "in_string")

    def __init__(self) -> None:
        self.in_string = False
        self._left = 0
        """Missing characters of an escape sequence."""
        self._owed = ""
        """A replacement that waits for the end of that sequence."""

    def pass_over(self, text: str) -> str:
        """``text`` unchanged, after a replacement that had to wait."""
        start = 0
        while self._left and start < len(text):
            self._escape(text[start])
            start += 1
        for match in _NOTABLE.finditer(text, start):
            if match[0] == '"':
                self.in_string = not self.in_string
            elif match.end() == len(text):
                self._left = 1
                for character in match[0][1:]:
                    self._escape(character)
        if self._owed and (start < len(text) or not self._left):
            text = text[:start] + self._owed + text[start:]
            self._owed = ""
        return text

    def _escape(self, character: str) -> None:
        # "u" is no hexadecimal digit: it can only follow the backslash, and four digits follow it.
        self._left = 4 if character == "u" else self._left - 1

    def cut(self, text: str, word: str) -> str:
        """``text`` removed and ``word`` put in, if it is not empty.

        Quotation marks and structure stay, and so do escape sequences that are only partly in ``text``.
        """
        kept: list[str] = []
        word, self._owed = self._owed + word, ""
        start = 0
        while self._left and start < len(text):
            kept.append(text[start])
            self._escape(text[start])
            start += 1
        if self._left:
            self._owed = word
            return "".join(kept)
        swallowed = ""
        for character in text[start:]:
            if self._left:
                swallowed += character
                self._escape(character)
                if not self._left:
                    swallowed = ""
            elif character == "\\":
                swallowed = character
                self._left = 1
            elif character == '"':
                if self.in_string:
                    kept.append(word)
                    word = ""
                kept.append(character)
                self.in_string = not self.in_string
            elif not self.in_string and character in _STRUCTURE:
                kept.append(character)
            elif word:
                kept.append(word if self.in_string else f'"{word}"')
                word = ""
        return "".join(kept) + (word if self.in_string else "") + swallowed
