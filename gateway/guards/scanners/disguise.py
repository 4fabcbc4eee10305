"""Undoes disguises that slip past a filter and that a model still understands, beyond what ``normalised`` does."""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Container, Iterator
from itertools import islice

from gateway.guards.scanners.hidden_letters import unescaped
from gateway.guards.scanners.normalised import plain

MAX_READINGS = 6
"""Of one text, besides the plain one."""
MAX_DECODED = 2_000
"""Characters of one reading."""
COMMENTS = 3
"""HTML comments of one text that are read by themselves, the longest."""
LAYERS = 3
"""Of base64 within base64."""

_LEET = str.maketrans("013457@$!|", "oieastasil")

_LEET_SIGN = re.compile(r"[013457@$!|][A-Za-z]")
_LEET_WORD = re.compile(
    r"(?<![\w@$|])(?=[\w@$!|]{0,20}(?:[A-Za-z][013457@$!|]{1,20}[A-Za-z]|\b[013457@$]{1,20}[A-Za-z]{2}))"
    r"[\w@$!|]{3,20}(?![\w@$|])"
)
_SPACED = re.compile(r"(?<!\w)(?:[A-Za-z][ .\-_*]{1,3}){5,}[A-Za-z](?!\w)")
_GAP = re.compile(r"[ .\-_*]{2,}")
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{16,}={0,2}(?![A-Za-z0-9+/_=-])")
_HEX = re.compile(r"(?<![0-9A-Fa-f])(?:(?:0x|\\x)?[0-9A-Fa-f]{2}[ ,:]?){12,}(?![0-9A-Fa-f])")
_HEX_MARK = re.compile(r"0x|\\x|[ ,:]")
_SHIFTED = re.compile(r"\brot-?13\b|\bcipher|\bvtaber\b|\bvafgehpgvbaf\b", re.IGNORECASE)
_REVERSED = re.compile(r"\breversed?\b|\bbackwards?\b|\bsnoitcurtsni\b|\berongi\b|\btpmorp\b", re.IGNORECASE)
_COMMON = ("the", "and", "you", "your", "this", "that", "with", "from", "all", "are", "were", "must")
_COMMON_SHIFTED = re.compile(
    rf"\b(?:{'|'.join(codecs.encode(word, 'rot13') for word in _COMMON)})\b", re.IGNORECASE
)
_COMMON_REVERSED = re.compile(rf"\b(?:{'|'.join(word[::-1] for word in _COMMON)})\b", re.IGNORECASE)
"""Two such words are English in disguise, though nothing speaks of it."""
_READABLE = re.compile(r"[A-Za-z]{2}[ ,.:;!?'\"\n-]+[A-Za-z]")


def readings(text: str, words: Container[str]) -> Iterator[str]:
    """Other ways to read ``text``, which is plain: leet and spaced letters as words, what is decoded from escapes,
    base64 (in up to ``LAYERS``), hex, ROT13 and reversal, and HTML comments, which people do not see. At most
    ``MAX_READINGS``. ``words`` are known ones, to find where words end.
    """
    return islice(_all_readings(text, words), MAX_READINGS)


def _all_readings(text: str, words: Container[str]) -> Iterator[str]:
    spelled = text
    if _SPACED.search(spelled):
        spelled = _SPACED.sub(lambda run: _joined(run[0], words), spelled)
    if _LEET_SIGN.search(spelled):
        spelled = _LEET_WORD.sub(lambda word: _spelled(word[0], words), spelled)
    if spelled != text:
        yield spelled
    for escaped in unescaped(text, MAX_DECODED):
        read = plain(escaped)
        if _READABLE.search(read):
            yield read
    yield from _comments(text)
    for run in _HEX.finditer(text):
        digits = _HEX_MARK.sub("", run[0])
        yield from _readable(bytes.fromhex(digits[: len(digits) // 2 * 2]))
    for run in _BASE64.finditer(text):
        yield from _from_base64(run[0])
    if _SHIFTED.search(text) or _has_two(_COMMON_SHIFTED, text):
        yield codecs.encode(text[:MAX_DECODED], "rot13")
    if _REVERSED.search(text) or _has_two(_COMMON_REVERSED, text):
        yield text[-MAX_DECODED:][::-1]


def _comments(text: str) -> list[str]:
    """Also one that nothing ends, as browsers read it."""
    found = [part.partition("-->")[0].strip() for part in text.split("<!--")[1:]]
    longest = sorted((comment for comment in found if _READABLE.search(comment)), key=len, reverse=True)
    return [comment[:MAX_DECODED] for comment in longest[:COMMENTS]]


def _has_two(words: re.Pattern[str], text: str) -> bool:
    return len({word[0].lower() for word in words.finditer(text)}) > 1


def _from_base64(run: str) -> Iterator[str]:
    for _ in range(LAYERS):
        body = run[: MAX_DECODED * 4].rstrip("=").translate({ord("-"): "+", ord("_"): "/"})
        try:
            data = base64.b64decode(body[: len(body) - (len(body) % 4 == 1)] + "==")
        except (binascii.Error, ValueError):
            return
        found = False
        for reading in _readable(data):
            found = True
            yield reading
        # One within the other, with or without line breaks.
        inner = b"".join(data.split())
        if found or not inner.isascii() or not _BASE64.fullmatch(run := inner.decode("ascii")):
            return


def _spelled(word: str, words: Container[str]) -> str:
    """Leet for a known word is that word; ``1`` may be an i or an l."""
    for letters in (word.translate(_LEET), word.replace("1", "l").translate(_LEET)):
        if letters.lower() in words:
            return letters
    return word


def _readable(data: bytes) -> Iterator[str]:
    try:
        decoded = data[: MAX_DECODED * 2].decode("utf-8", "strict" if len(data) <= MAX_DECODED else "ignore")
    except UnicodeDecodeError:
        return
    if decoded.isprintable() or "\n" in decoded:
        decoded = plain(decoded[:MAX_DECODED])
        if _READABLE.search(decoded):
            yield decoded


def _joined(run: str, words: Container[str]) -> str:
    """Letters with gaps as words: where the gaps between words are no wider, words end where a known one does."""
    parts = _GAP.split(run)
    if len(parts) > 1 and len(parts) < len(run) / 4:
        return " ".join("".join(filter(str.isalpha, part)) for part in parts)
    letters = "".join(filter(str.isalpha, run))[:MAX_DECODED]
    # best[i]: the fewest pieces of the first i letters, and where the last of them begins; a letter alone costs more.
    best: list[tuple[float, int]] = [(0.0, 0)]
    lower = letters.lower()
    for end in range(1, len(letters) + 1):
        cost, begin = best[end - 1][0] + 2, end - 1
        for start in range(max(0, end - 16), end - 1):
            if lower[start:end] in words and best[start][0] + 1 < cost:
                cost, begin = best[start][0] + 1, start
        best.append((cost, begin))
    pieces, end = [], len(letters)
    while end:
        start = best[end][1]
        pieces.append(letters[start:end])
        end = start
    return " ".join(reversed(pieces))
