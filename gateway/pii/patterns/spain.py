"""Numbers of persons in Spain: of citizens (DNI, NIF) and of foreigners (NIE)."""

from __future__ import annotations

from gateway.pii.patterns.numbered import Form, numbered

_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
_LETTER = "[ -]?[A-HJ-NP-TV-Z]"
_WORDS = r"dni\b nif\b nie\b documento identidad identificaci[óo]n extranjero fiscal"


def is_nif(number: str) -> bool:
    """The letter is the number's rest modulo 23; X, Y, Z before a foreigner's stand for 0, 1, 2."""
    digits = str("XYZ".index(number[0])) + number[1:-1] if number[0] in "XYZ" else number[:-1]
    return _LETTERS[int(digits) % 23] == number[-1]


ES_NIF = numbered(
    "ES_NIF",
    [Form(rf"(?:\d{{7}}|\d?\.\d{{3}}\.\d{{3}}){_LETTER}")],
    is_nif,
    _WORDS,
    alone=0.6,
    longest=12,
)
ES_NIE = numbered(
    "ES_NIE",
    [
        Form(rf"(?:\d{{6}}|\.\d{{3}}\.\d{{3}}){_LETTER}", before=before, width=width)
        for before, width in (("[XYZ]", 1), ("[XYZ][ -]", 2))
    ],
    is_nif,
    _WORDS,
    alone=0.7,
    longest=13,
)
