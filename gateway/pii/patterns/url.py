"""Web addresses, with a scheme or ``www``, and host names under the common top-level domains."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from gateway.findings import Finding
from gateway.pii.patterns.pattern import Pattern

_WHOLE = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:https?|ftps?|wss?)://[\w\[]|www\d?\.(?=[\w-]{1,63}\.))[^\s<>\"`{}|\\^]{2,2000}",
    re.IGNORECASE,
)
_BARE = re.compile(
    r"\.(?:com|org|net|edu|gov|info|biz|io|dev|app|co\.uk|org\.uk|ac\.uk|com\.(?:au|br|mx|tr|cn|ar))"
    r"(?![\w@]|\.\w|-\w)(?::\d{1,5}(?!\d))?(?:[/?#][^\s<>\"`{}|\\^]{0,500})?"
)
_HOST = re.compile(
    r"(?<![\w@.-])(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.){0,6}[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\Z"
)


def find(text: str) -> Iterator[Finding]:
    if "." not in text and "://" not in text:
        return
    whole: deque[Finding] = deque()
    if "://" in text or "www" in text or "WWW" in text:
        for match in _WHOLE.finditer(text):
            whole.append(Finding("URL", match.start(), _trimmed(text, match.start(), match.end()), 1.0))
        yield from whole
    for match in _BARE.finditer(text):
        host = _HOST.search(text, max(0, match.start() - 128), match.start())
        if host is None or text[host.start() - 1 : host.start()] in ("/", ":"):
            continue
        while whole and whole[0].end <= host.start():
            whole.popleft()
        if not whole or host.start() < whole[0].start:
            yield Finding("URL", host.start(), _trimmed(text, match.start() + 2, match.end()), 0.6)


def _trimmed(text: str, start: int, end: int) -> int:
    """Without the punctuation of the sentence around it; a bracket that was opened within belongs to it."""
    unopened = {
        bracket: text.count(bracket, start, end) - text.count(opening, start, end)
        for opening, bracket in ("()", "[]")
    }
    while end > start:
        last = text[end - 1]
        if last in unopened:
            if unopened[last] <= 0:
                break
            unopened[last] -= 1
        elif last not in ".,;:!?'*_~’”»":
            break
        end -= 1
    return end


URL = Pattern("URL", 512, find)
