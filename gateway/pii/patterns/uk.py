"""Numbers of persons in the United Kingdom: the National Health Service's, and of national insurance."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.findings import Finding
from gateway.pii.patterns.pattern import ContextWords, Pattern

_TEN = re.compile(r"\d(?<![\w.,+-]\d)\d\d([ -]?)\d{3}\1\d{4}(?![\w-]|[.,]\d)", re.ASCII)
_NHS = ContextWords(
    r"nhs national\shealth patient medical\srecord",
)


def find_nhs(text: str) -> Iterator[Finding]:
    """Ten digits with a check digit modulo 11, as the NHS Data Dictionary has it."""
    surroundings = _NHS.of(text)
    for match in _TEN.finditer(text):
        digits = match[0].replace("-", "").replace(" ", "")
        if sum(int(digit) * weight for digit, weight in zip(digits, range(10, 0, -1), strict=True)) % 11:
            continue
        spoken_of = surroundings(match.start(), match.end()) > 0
        yield Finding("UK_NHS", match.start(), match.end(), 0.95 if spoken_of else 0.45)


_NINO = re.compile(
    r"(?<!\w)(?!BG|GB|KN|NK|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D](?!\w)",
    re.IGNORECASE | re.ASCII,
)


def find_nino(text: str) -> Iterator[Finding]:
    """Two letters, six digits, A to D, as HMRC's manual NIM39110 has it."""
    for match in _NINO.finditer(text):
        yield Finding("UK_NINO", match.start(), match.end(), 0.7)


UK_NHS = Pattern("UK_NHS", 12 + ContextWords.BEFORE, find_nhs, needs="0-9")
UK_NINO = Pattern("UK_NINO", 13, find_nino, needs="0-9")
