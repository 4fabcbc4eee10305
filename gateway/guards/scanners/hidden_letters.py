r"""Undoes escapes by which letters hide: percent signs, references of HTML, ``\u0069`` and ``\x69``.

No encoder writes plain letters and digits so; of spaces alone a few in a row make a sentence of what was one word.
What else is escaped (accents in JSON, ``&lt;`` in documentation) is no disguise, and texts that have only that are
left alone.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from urllib.parse import unquote

FEWEST = 4
"""Escaped letters, digits and spaces that make a run."""
MOST_RUNS = 2
"""Of one text, the longest."""
_GAP = 32
"""Characters between two escapes of one run."""
_AROUND = 40
"""Characters before and behind a run that belong to it, up to white space."""
_LAYERS = 2
"""Escapes within escapes: ``%2569`` is ``%69``, and that an i."""

_HEX = r"(?:20|3\d|4[1-9A-Fa-f]|5[0-9Aa]|6[1-9A-Fa-f]|7[0-9Aa])"
_DECIMAL = r"(?:32|4[89]|5[0-7]|6[5-9]|[78]\d|90|9[7-9]|1[01]\d|12[0-2])"
_LETTER = re.compile(
    rf"%(?:25)?{_HEX}|%u00{_HEX}|&(?:amp;)?#(?:0{{0,4}}{_DECIMAL}|[xX]0{{0,4}}{_HEX})(?![0-9A-Fa-f])"
    rf"|\\{{1,2}}(?:u00{_HEX}|u\{{0{{0,4}}{_HEX}\}}|x{_HEX}|U000000{_HEX})"
)
"""An escape that stands for a letter of ASCII, a digit (of an escape within) or a space."""
_CODE = re.compile(
    r"\\{1,2}(?:u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}|x([0-9A-Fa-f]{2})|U([0-9A-Fa-f]{8}))"
)
_PERCENT_U = re.compile(r"%u([0-9A-Fa-f]{4})")
_START, _END = re.compile(r"\S{0,40}\Z"), re.compile(r"\S{0,40}")


def unescaped(text: str, most: int) -> Iterator[str]:
    """Runs of ``text`` as they read without their escapes, of ``most`` characters each."""
    for begin, end in _runs(text):
        begin -= len(_START.search(text[max(0, begin - _AROUND) : begin])[0])  # type: ignore[index]
        end += len(_END.match(text[end : end + _AROUND])[0])  # type: ignore[index]
        run = text[begin : min(end, begin + 12 * most)]
        for _ in range(_LAYERS):
            run = _PERCENT_U.sub(
                _character, _CODE.sub(_character, unquote(html.unescape(run), errors="ignore"))
            )
        yield run[:most]


def _runs(text: str) -> list[tuple[int, int]]:
    """The longest runs, in their order."""
    found: list[tuple[int, int, int]] = []
    for escape in _LETTER.finditer(text):
        if found and escape.start() - found[-1][1] <= _GAP:
            begin, _, count = found[-1]
            found[-1] = begin, escape.end(), count + 1
        else:
            found.append((escape.start(), escape.end(), 1))
    long = sorted((run for run in found if run[2] >= FEWEST), key=lambda run: run[0] - run[1])
    return sorted((begin, end) for begin, end, _ in long[:MOST_RUNS])


def _character(escape: re.Match[str]) -> str:
    code = int(next(filter(None, escape.groups())), 16)
    return chr(code) if code < 0xD800 or 0xDFFF < code <= 0x10FFFF else ""
