"""Text as patterns expect it: digits, dashes, spaces and full-width characters in ASCII, without invisible characters,
and with findings at their positions in the original."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache

from gateway.findings import Finding

_FULL_WIDTH = range(0xFF01, 0xFF5F)
"""``!`` to ``~``."""
_RANGES = (range(0x80, 0x10000), range(0x10000, 0x20000))


_INVISIBLE = re.compile("[\u00ad\u034f\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")


def find_visible(text: str, find: Callable[[str], Iterable[Finding]]) -> Iterator[Finding]:
    """What ``find`` finds in ``text`` without its invisible characters: a zero-width space splits no address."""
    if text.isascii() or not _INVISIBLE.search(text):
        yield from find(text)
        return
    positions = [at for at, sign in enumerate(text) if not _INVISIBLE.match(sign)]
    for one in find("".join(text[at] for at in positions)):
        if one.end > one.start:
            yield Finding(one.label, positions[one.start], positions[one.end - 1] + 1, one.score)


def folded(text: str) -> str:
    """Of the same length: an Arabic 4 becomes 4, a no-break space a space, an en dash a hyphen."""
    return text if text.isascii() else text.translate(_ascii_twins())


@cache
def _ascii_twins() -> Mapping[int, str]:
    twins: dict[int, str] = {}
    for code in (code for span in _RANGES for code in span):
        if code in _FULL_WIDTH:
            twins[code] = chr(code - 0xFEE0)
            continue
        kind = unicodedata.category(chr(code))
        if kind == "Nd":
            twins[code] = str(unicodedata.digit(chr(code)))
        elif kind == "Zs":
            twins[code] = " "
        elif kind == "Pd":
            twins[code] = "-"
    return twins
