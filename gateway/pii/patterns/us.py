"""Numbers of persons in the United States: social security, taxpayer, passport, driving licence."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.findings import Finding
from gateway.pii.patterns.pattern import ContextWords, Pattern

_NINE = re.compile(r"\d(?<![\w.,+-]\d)\d\d([ -]?)\d\d\1\d{4}(?![\w-]|[.,]\d)", re.ASCII)
_SSN = ContextWords(
    r"ssn ss# soc(?:ial)?\.?\s?sec social tax(?:payer)?\sid tin\b",
    r"order invoice tracking serial part model sku zip phone routing account",
)
_ITIN = ContextWords(
    r"itin individual\stax tax(?:payer)?\sid tin\b",
)


def find_ssn(text: str) -> Iterator[Finding]:
    """The Social Security Administration gives out no area 000, 666 or 900 to 999, no group 00, no serial 0000."""
    surroundings = _SSN.of(text)
    for match in _NINE.finditer(text):
        digits = match[0].replace("-", "").replace(" ", "")
        if digits[:3] in ("000", "666") or digits[0] == "9" or digits[3:5] == "00" or digits[5:] == "0000":
            continue
        context = surroundings(match.start(), match.end())
        score = 0.95 if context > 0 else 0.8 if match[1] == "-" and not context else 0.3
        yield Finding("US_SSN", match.start(), match.end(), score)


def find_itin(text: str) -> Iterator[Finding]:
    """Of the IRS: 900 to 999, and in the middle 50 to 65, 70 to 88, 90 to 92, 94 to 99."""
    surroundings = _ITIN.of(text)
    for match in _NINE.finditer(text):
        digits = match[0].replace("-", "").replace(" ", "")
        middle = int(digits[3:5])
        if digits[0] != "9" or middle < 50 or 65 < middle < 70 or middle in (89, 93):
            continue
        context = surroundings(match.start(), match.end())
        score = 0.9 if context > 0 else 0.6 if match[1] == "-" else 0.2
        yield Finding("US_ITIN", match.start(), match.end(), score)


_PASSPORT = re.compile(r"\d(?<![\w.,+-]\d)\d{8}(?![\w-]|[.,]\d)|[A-Z](?<!\w[A-Z])\d{8}(?![\w-])", re.ASCII)
_PASSPORTS = ContextWords(
    r"passport passeport pasaporte reisepass travel\sdocument",
)


def find_passport(text: str) -> Iterator[Finding]:
    """Nine digits, or a letter and eight, where a passport is spoken of."""
    if "ass" not in text and "PASS" not in text and "ravel" not in text:
        return
    surroundings = _PASSPORTS.of(text)
    for match in _PASSPORT.finditer(text):
        if surroundings(match.start(), match.end()) > 0:
            yield Finding("US_PASSPORT", match.start(), match.end(), 0.85)


_LICENSE = re.compile(
    r"(?:driv(?:er|ing|ers)\S{0,2}\s{1,3}licen[sc]e|\bdl\b)[^\w\n]{0,3}(?:\s{0,2}\b(?:number|no|num|id|nr|is|was|my|it|and|the)\b|[\s.:#=,]){0,6}?"
    r"(?P<number>(?=[A-Z*]{0,3}\d)[A-Z0-9*](?:[A-Z0-9*]|[ -](?=[A-Z0-9]{0,6}\d)){3,18}[A-Z0-9])(?!\w)",
    re.IGNORECASE | re.ASCII,
)


def find_license(text: str) -> Iterator[Finding]:
    """States agree on no form: what follows the word and has digits."""
    for match in _LICENSE.finditer(text):
        start, end = match.span("number")
        if sum(map(str.isdigit, match["number"])) >= 4:
            yield Finding("US_DRIVER_LICENSE", start, end, 0.75)


US_SSN = Pattern("US_SSN", 11 + ContextWords.BEFORE, find_ssn, needs="0-9")
US_ITIN = Pattern("US_ITIN", 11 + ContextWords.BEFORE, find_itin, needs="0-9")
US_PASSPORT = Pattern("US_PASSPORT", 9 + ContextWords.BEFORE, find_passport)
US_DRIVER_LICENSE = Pattern("US_DRIVER_LICENSE", 20 + ContextWords.BEFORE, find_license)
