"""JSON's escapes: needless ones are undone, and necessary ones do not hide what follows them."""

from __future__ import annotations

import json
import re

_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.ASCII | re.DOTALL
)
"""Matched in sequence, so that an escaped backslash never begins another escape."""
_OPEN = re.compile(r"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z", re.ASCII)
"""An incomplete escape: two may be a surrogate pair (RFC 8259, section 7)."""
_LONGEST = 11
_HALF = re.compile("[\ud800-\udfff]")
_LETTER = re.compile(r"\\[bfnrt]")
_READ = {r"\n": "\r\n", r"\r": "\r\r"}


class Unescaping:
    """Removes needless escapes from JSON text that comes in pieces.

    ``\\u0040`` becomes ``@``, so that patterns see what a parser of the text would. It stays the same JSON.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""
        """Possibly the beginning of an escape."""

    def feed(self, text: str) -> str:
        """As much as is certain by now. An incomplete escape at the very end is not JSON, and is dropped."""
        if not self._held and "\\" not in text:
            return text
        text = self._held + text
        self._held = ""
        start = max(0, len(text) - _LONGEST)
        match = _OPEN.search(text, start)
        if match and match[0]:
            before = text[: match.start()]
            if not (len(before) - len(before.rstrip("\\"))) % 2:
                text, self._held = before, match[0]
        return _ESCAPE.sub(_written, text) if "\\u" in text or "\\/" in text else text


def _written(escape: re.Match[str]) -> str:
    if escape[0][1] not in "u/" or escape[0] == "\\u":  # necessary, or not JSON
        return escape[0]
    text = json.dumps(json.loads(f'"{escape[0]}"'), ensure_ascii=False)[1:-1]
    return _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def unglued(text: str) -> str:
    """``text`` of the same length, in which a written-out ``\\n`` is white space: its letter begins no word.

    Tools answer in JSON, and models call them with it; programs are quoted with their escapes.
    """
    if "\\" not in text:
        return text
    return _LETTER.sub(lambda escape: _READ.get(escape[0], "  "), text)
