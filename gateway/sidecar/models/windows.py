"""Long texts split into windows of a model's input size."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.sidecar.api import SidecarError

Span = tuple[int, int]

CHARACTERS_PER_TOKEN = 8
"""A text with more than this on average is refused before it is tokenized."""


class TooLong(SidecarError):
    """It could only be scored in part."""

    def __init__(self, windows: int) -> None:
        super().__init__(f"the text is too long: it has more than {windows} windows")


def refuse_longer(text: str, size: int, most: int) -> None:
    """Raises ``TooLong`` for a text that is certain to be, without tokenizing it."""
    if len(text) > size * most * CHARACTERS_PER_TOKEN:
        raise TooLong(most)


def windows(
    length: int, tokens: Sequence[Span], words: Sequence[int | None], *, size: int, overlap: int, most: int
) -> list[Span]:
    """Spans of at most ``size`` tokens that cover a text of ``length`` characters.

    ``tokens`` are the spans of its tokens, ``words`` the number of the word to which each belongs. Each window begins
    and ends between words, unless a word is longer than it, and repeats about ``overlap`` tokens of the one before.
    Raises ``TooLong`` where that takes more than ``most``.
    """
    if len(tokens) <= size:
        return [(0, length)]
    starts = [at for at in range(len(tokens)) if at == 0 or words[at] is None or words[at] != words[at - 1]]
    borders = frozenset(starts)

    def cut(begin: int) -> int:
        return next((at for at in range(begin + size, begin, -1) if at in borders), begin + size)

    spans: list[Span] = []
    begin = end = 0
    while begin + size < len(tokens):
        before, end = end, cut(begin)
        if end <= before:  # the next word is too long to stand beside what is repeated
            begin, end = before, cut(before)
            if begin + size >= len(tokens):
                break
        spans.append((tokens[begin][0] if begin else 0, tokens[end - 1][1]))
        if len(spans) == most:
            raise TooLong(most)
        wanted = max(end - overlap, begin + 1)
        begin = next((at for at in range(wanted, end) if at in borders), end)
    spans.append((tokens[begin][0], length))
    return spans
