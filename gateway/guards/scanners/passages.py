"""A text's passages: sentences, lines and values, each of which may be an order of its own, and pairs of neighbours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

Span = tuple[int, int]

LEAST = 12
"""Characters of the shortest passage."""
LONGEST = 400
"""Characters of the longest; a sentence of more is cut, with a quarter of overlap."""
PAIR = 300
"""Characters of the longest pair."""

_CUT = re.compile(
    r"[.!?]{1,4}[\"')\]]{0,3}(?=\s|$)|[。！？]|\n+|[\"'](?=\s{0,8}[,:}\]])|[:,]\s{0,8}[\"'](?=\w)|[{}<>|]"
)
"""The ends of sentences, lines, and quoted values of JSON and the like."""


def passages(text: str) -> list[Span]:
    """In order; each pair stands behind its first part. None where ``text`` is shorter than ``LEAST``."""
    parts = segments(text)
    spans = []
    for at, part in enumerate(parts):
        spans.append(part)
        if at + 1 < len(parts) and parts[at + 1][1] - part[0] <= PAIR:
            spans.append((part[0], parts[at + 1][1]))
    return spans


def segments(text: str) -> list[Span]:
    """Sentences, lines and values of ``LEAST`` to ``LONGEST`` characters."""
    edges = [0, *(match.end() for match in _CUT.finditer(text)), len(text)]
    spans: list[Span] = []
    for start, end in pairwise(edges):
        if end - start > LONGEST:
            step = LONGEST * 3 // 4
            spans.extend((at, min(at + LONGEST, end)) for at in range(start, end - LONGEST // 4, step))
        elif end - start >= LEAST and len(text[start:end].strip()) >= LEAST:
            spans.append((start, end))
    return spans


def around(span: Span, parts: Sequence[Span], length: int, most: int) -> Span:
    """``span`` with as many of its neighbours among ``parts`` as fit into ``most`` characters.

    Of a text of no more than ``most`` characters, ``length`` of them, all.
    """
    if length <= most:
        return 0, length
    start, end = span
    before = [part for part in parts if part[1] <= start]
    after = [part for part in parts if part[0] >= end]
    grown = True
    while grown:
        grown = False
        if before and end - before[-1][0] <= most:
            start, grown = before.pop()[0], True
        if after and after[0][1] - start <= most:
            end, grown = after.pop(0)[1], True
    return start, end
