"""A text as a reader sees it: what every check by patterns or words looks at.

Unicode's compatibility forms (NFKC: full-width, circled, mathematical letters, ligatures) are undone; digits of all
scripts, spaces and dashes are ASCII; what is invisible (zero-width characters, soft hyphens, variation selectors) or
struck over a character is left out; Cyrillic, Greek and other letters that pass for Latin ones become these. What is
found has its place in the original, all that a reader takes for it included.

How a character reads depends on at most ``CONTEXT`` characters around it, so that a text that is read in overlapping
pieces, as streams are, reads the same as the whole.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from gateway.findings import Finding
from gateway.guards.scanners.replaced_spans import ReplacedSpans

CONTEXT = 24
"""Characters around a word of lookalikes in which letters of its own script show that it is meant."""

_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0"
)
_FAR_INVISIBLE = "\U000e0001\U000e007f\U000e0100-\U000e01ef"
_OVERLAYS = "\u0334-\u0338\u0488\u0489\u20d2-\u20d4\u20d8-\u20da\u20dd-\u20e0\u20e2-\u20e5"
"""Marks that strike a character through or enclose it, as in a keycap's digit."""
_TAGS = range(0xE0020, 0xE007F)
"""Invisible copies of ASCII. A model reads them."""
_GONE = re.compile(f"[{_INVISIBLE}{_OVERLAYS}{_FAR_INVISIBLE}]")
_PLAIN: dict[str, str] = {
    **{chr(code): chr(code - 0xE0000) for code in _TAGS},
    # Two ligatures of a phrase: taken apart they would make a text up to 18 times as long.
    "\ufdfa": "\u0635", "\ufdfb": "\u062c",
    **dict(zip("’‘ʼ“”−", "'''\"\"-", strict=True)),
    **{chr(code + place): chr(65 + place) for code in (0x1F150, 0x1F170) for place in range(26)},
}  # fmt: skip
"""Characters that NFKC leaves as they are; among them letters in black circles and squares."""

# The confusables that attacks use most: https://www.unicode.org/reports/tr39/
_LETTERS = {
    "аеорсухіјѕһԁӏԝԛүґѵАВЕКМНОРСТУХІЈЅԌԜҮѴ": "aeopcyxijshdlwqyrvABEKMHOPCTYXIJSGWYV",
    "αινορτυχκγϲϳΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹϜ": "aivoptuxkycjABEZHIKMNOPTYXCF",
    "օոսհցզԼՕՏԱ": "onuhgqLOSU",
    "ᎪᎬᎻᏀᎥᎫᏞᎷᏢᏚᎢᏙᎳᏃᏟᏴ": "AEHGiJLMPSTVWZCB",
    "ɑɡɩɪɴʀʏʟıȷⅼⲟⲣ": "agiinrylijlop",
}
_LOOKALIKES = str.maketrans("".join(_LETTERS), "".join(_LETTERS.values()))
_SCRIPTS = ((0x250, 0x2B0), (0x370, 0x530), (0x531, 0x588), (0x13A0, 0x1400), (0x2C80, 0x2D00))
_MAY_PASS = re.compile(f"[{''.join(_LETTERS)}]")
_OWN = re.compile(
    f"[{''.join(chr(at) for span in _SCRIPTS for at in range(*span) if at not in _LOOKALIKES)}]"
)
"""Letters of these scripts that pass for no Latin one."""
_WORD = re.compile(r"[^\W_]+")
_LATIN = re.compile("[A-Za-z]")

# Vowel signs and jamo that join the character before, though they are no combining marks.
_JOINS = re.compile(
    f"[{_OVERLAYS}\u09be\u09d7\u0b3e\u0b56\u0b57\u0bbe\u0bd7\u0cc2\u0cd5\u0cd6\u0d3e\u0d57\u0dcf\u0ddf\u102e"
    "\u1161-\u1175\u11a8-\u11c2\u1b35\ufe00-\ufe0f]"
)
_DASHES = (
    "\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u2e5d\u301c\u3030\u30a0"
    "\ufe31\ufe32\ufe58\ufe63\uff0d"
)
_RUN = re.compile(r"[^\x00-\x7f]+")
# What of a run in NFKC may be read otherwise; three fast searches, where one for all would be a slow one.
_CHANGES = re.compile(
    f"[{_INVISIBLE}{_OVERLAYS}{_DASHES}\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u1680"
    f"{''.join(sign for sign in _PLAIN if ord(sign) < 0x10000)}]"
)
_DIGIT = re.compile(r"\d")
_FAR = re.compile("[\U00010000-\U0010ffff]")

Find = Callable[[str], Iterable[Finding]]


class Normalised:
    """``text`` as a reader sees it, and where its characters stand in the original."""

    __slots__ = ("_spans", "text")

    def __init__(self, original: str) -> None:
        self.text = original
        self._spans = ReplacedSpans()
        if not original.isascii():
            self.text = self._replaced(original)
            if _MAY_PASS.search(self.text):
                self.text = _in_latin(self.text)

    def find(self, find: Find) -> Iterator[Finding]:
        """What ``find`` finds in ``text``, at its places in the original."""
        if not self._spans:
            yield from find(self.text)
            return
        for one in find(self.text):
            if one.end > one.start:
                yield Finding(one.label, *self.place(one.start, one.end), one.score)

    def place(self, start: int, end: int) -> tuple[int, int]:
        """Where a span of ``text`` that is not empty stands in the original."""
        if not self._spans:
            return start, end
        return self._spans.place(start)[0], self._spans.place(end - 1)[1]

    def _replaced(self, original: str) -> str:
        parts: list[str] = []
        done = size = 0
        """What of the original has been read, and what has been written."""
        for run in _RUN.finditer(original):
            if _is_plain(run[0]):
                continue
            # A mark may stand on the ASCII character before.
            for start, end in _clusters(original, max(done, run.start() - 1), run.end()):
                cluster = original[start:end]
                plain = _plain(cluster)
                if plain == cluster:
                    continue
                parts += (original[done:start], plain)
                size += start - done
                if len(plain) != end - start or len(plain) > 1:
                    self._spans.add(size, start, end, len(plain))
                size += len(plain)
                done = end
        return "".join((*parts, original[done:])) if parts else original


def plain(text: str) -> str:
    """``text`` as a reader sees it."""
    return text if text.isascii() else Normalised(text).text


def _is_plain(run: str) -> bool:
    if _CHANGES.search(run) or _DIGIT.search(run) or _FAR.search(run):
        return False
    return unicodedata.is_normalized("NFKC", run)


def _clusters(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Characters with the marks on them, which may become one character."""
    for at in range(start + 1, end):
        if not (unicodedata.combining(text[at]) or _JOINS.match(text, at)):
            yield start, at
            start = at
    yield start, end


@lru_cache(4096)
def _plain(cluster: str) -> str:
    cluster = unicodedata.normalize(
        "NFKC", _GONE.sub("", "".join(_PLAIN.get(sign, sign) for sign in cluster))
    )
    if cluster.isascii():
        return cluster
    read = "".join(map(_ascii, _GONE.sub("", cluster)))
    # Accents that make no letter of their own, over a letter or digit: a reader looks past them.
    return read[0] if read[:1].isascii() and all(map(unicodedata.combining, read[1:])) else read


def _ascii(sign: str) -> str:
    if sign in _PLAIN:
        return _PLAIN[sign]
    kind = unicodedata.category(sign)
    if kind == "Nd":
        return str(unicodedata.digit(sign))
    return " " if kind == "Zs" else "-" if kind == "Pd" else sign


def _in_latin(text: str) -> str:
    """Words that mix Latin letters with lookalikes; and those of lookalikes alone, unless a letter of their own script
    is near. Of the same length."""
    parts: list[str] = []
    done = 0
    for word in _WORD.finditer(text):
        if word[0].isascii() or not _MAY_PASS.search(word[0]):
            continue
        start, end = word.span()
        if not _LATIN.search(word[0]) and _OWN.search(text, max(0, start - CONTEXT), end + CONTEXT):
            continue
        parts += (text[done:start], word[0].translate(_LOOKALIKES))
        done = end
    return "".join((*parts, text[done:]))
