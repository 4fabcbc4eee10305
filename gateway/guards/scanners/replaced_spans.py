"""Where the characters of a text stand in the one that it was made of, by replacing parts of that."""

from __future__ import annotations

from bisect import bisect_right


class ReplacedSpans:
    """The parts that are longer or shorter than what they replace; all others are as long."""

    __slots__ = ("_begins", "_spans")

    def __init__(self) -> None:
        self._begins: list[int] = []
        """Where each begins in the new text, in order."""
        self._spans: list[tuple[int, int, int]] = []
        """Their start and end in the original, and their length."""

    def __bool__(self) -> bool:
        return bool(self._begins)

    def add(self, begin: int, start: int, end: int, length: int) -> None:
        """``length`` characters at ``begin`` of the new text stand for ``[start, end)``. To be called in order."""
        self._begins.append(begin)
        self._spans.append((start, end, length))

    def place(self, at: int) -> tuple[int, int]:
        """What the character at ``at`` of the new text stands for."""
        number = bisect_right(self._begins, at) - 1
        if number < 0:
            return at, at + 1
        start, end, length = self._spans[number]
        behind = at - self._begins[number] - length
        return (start, end) if behind < 0 else (end + behind, end + behind + 1)
