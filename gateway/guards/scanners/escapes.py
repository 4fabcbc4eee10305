"""JSON's escapes: those that need not be are undone, and those that must be do not hide what follows them."""

from __future__ import annotations

import json
import re

_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.ASCII | re.DOTALL
)
"""One after the other, so that a backslash is never taken for the beginning of what follows its own escape."""
_OPEN = re.compile(r"(?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z", re.ASCII)
"""An escape that more may belong to: two of them may be the halves of one character (RFC 8259, section 7)."""
_LONGEST = 11
_HALF = re.compile("[\ud800-\udfff]")
_LETTER = re.compile(r"\\[bfnrt]")
_READ = {r"\n": "\r\n", r"\r": "\r\r"}


class Unescaping:
    """JSON text that comes in pieces, written without the escapes that it can do without.

    ``\\u0040`` becomes ``@``: patterns then see what whoever parses the text would see. It stays the same JSON.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""
        """What may be the beginning of an escape."""

    def feed(self, text: str) -> str:
        """What is known of it by now. Half an escape at the end of all is no JSON, and is never given out."""
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
    if escape[0][1] not in "u/" or escape[0] == "\\u":  # as it must be, or no JSON
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
