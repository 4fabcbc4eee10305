"""International bank account numbers (ISO 13616), with the lengths of the SWIFT registry."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.findings import Finding
from gateway.pii.patterns.pattern import Pattern

LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BI": 27,
    "BR": 29, "BY": 28, "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DJ": 27, "DK": 18, "DO": 28,
    "EE": 20, "EG": 29, "ES": 24, "FI": 18, "FK": 18, "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23,
    "GL": 18, "GR": 27, "GT": 28, "HN": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26,
    "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21,
    "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MN": 20, "MR": 27, "MT": 31, "MU": 30, "NI": 28,
    "NL": 18, "NO": 15, "OM": 23, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22,
    "RU": 33, "SA": 24, "SC": 31, "SD": 18, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "SO": 23, "ST": 25,
    "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20, "YE": 30,
}  # fmt: skip
_CANDIDATE = re.compile(
    r"\d(?<=[A-Za-z]{2}\d)(?<![A-Za-z0-9]..\d)\d(?:[ .-]{0,2}[A-Za-z0-9]){11,31}", re.ASCII | re.DOTALL
)

_SEPARATORS = str.maketrans("", "", " .-")


def find(text: str) -> Iterator[Finding]:
    for match in _CANDIDATE.finditer(text):
        start = match.start() - 2
        length = LENGTHS.get(text[start : start + 2].upper())
        end = length and _end(text, start, match.end(), length)
        if end and valid(text[start:end]):
            yield Finding("IBAN_CODE", start, end, 1.0)


def _end(text: str, start: int, end: int, length: int) -> int | None:
    """Where the ``length``-th letter or digit ends, if that is the end of a word."""
    for place in range(start, end):
        length -= text[place].isalnum()
        if not length:
            return None if text[place + 1 : place + 2].isalnum() else place + 1
    return None


def valid(iban: str) -> bool:
    """Whether the check digits are right (ISO 7064, MOD 97-10)."""
    plain = iban.translate(_SEPARATORS)
    return int("".join(str(int(sign, 36)) for sign in plain[4:] + plain[:4])) % 97 == 1


IBAN_CODE = Pattern("IBAN_CODE", 33 + 2 * 8, find, needs="0-9")
