"""Where the parts of a message meet: models read them as one text, so what is cut into parts is one to guards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from gateway.findings import Finding
from gateway.guards.scanners.scanner import Origin
from gateway.guards.texts.request_texts import RequestText

AROUND = 200
"""Characters of a part on either side of a seam; shorter parts are read whole, with what is beyond them."""

STRETCH = 4_000
"""Characters of parts that are read at once."""
TWICE = 20_000
"""Characters of a request that are read both with spaces and as they stand; what is beyond is read with spaces."""


class Seam(NamedTuple):
    text: str
    origin: Origin
    number: int
    """Of the last text that it has anything of."""


def seams(texts: Sequence[RequestText]) -> list[Seam]:
    """What stands around each place where two texts of one message meet, with spaces between those that have none,
    and as they stand."""
    found: list[Seam] = []
    read = 0
    for run in _runs(texts):
        for parts in _near([texts[number].text for number in run]):
            last = run[parts[-1][0]]
            pieces = [text for _, text in parts]
            readings = {_spaced(pieces): None}
            if read < TWICE:
                readings["".join(pieces)] = None
                read += sum(map(len, pieces))
            found += [Seam(text, texts[last].origin, last) for text in readings]
    return found


def _spaced(pieces: Sequence[str]) -> str:
    gaps = ["" if one[-1].isspace() or other[0].isspace() else " " for one, other in pairwise(pieces)]
    return "".join(chain.from_iterable(zip(pieces, [*gaps, ""], strict=True)))


def _runs(texts: Sequence[RequestText]) -> Iterator[list[int]]:
    """Numbers of texts that are parts of the same content, one after another."""
    run: list[int] = []
    for number, text in enumerate(texts):
        if text.kind == "text" and len(text.path) > 2 and text.path[-1] == "text" and text.text.strip():
            same = run and texts[run[-1]].path[:-2] == text.path[:-2] and texts[run[-1]].origin == text.origin
            if not same:
                if len(run) > 1:
                    yield run
                run = []
            run.append(number)
    if len(run) > 1:
        yield run


def _near(parts: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """Parts of each stretch that is read at once, by their place in ``parts``; long ones end a stretch."""
    stretch = [(0, parts[0][-AROUND:])]
    size, told = len(stretch[0][1]), -1
    for at, part in enumerate(parts[1:], 1):
        stretch.append((at, part[:AROUND]))
        size += len(stretch[-1][1])
        if len(part) <= AROUND and size <= STRETCH:
            continue
        yield stretch
        told = at
        stretch = [(at, part[-AROUND:])] if len(part) > AROUND else _last(stretch)
        size = sum(len(text) for _, text in stretch)
    if stretch[-1][0] > max(told, 0):
        yield stretch


def _last(stretch: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """What the next stretch has in common with this one."""
    size, start = 0, len(stretch)
    while size < AROUND:
        start -= 1
        size += len(stretch[start][1])
    return [*stretch[start:]]


def apart(findings: Sequence[tuple[Finding, ...]], own: int) -> list[tuple[Finding, ...]]:
    """``findings`` without those of seams, which come behind the ``own``, where a text has some by itself."""
    if any(findings[:own]):
        return [*findings[:own], *[() for _ in findings[own:]]]
    return [*findings]
