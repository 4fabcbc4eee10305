"""Numbers of persons in India: Aadhaar, and the permanent account number of the tax department."""

from __future__ import annotations

from gateway.pii.patterns.check_digits import verhoeff
from gateway.pii.patterns.numbered import Form, numbered


def is_aadhaar(number: str) -> bool:
    """Twelve digits with Verhoeff's check digit, and no palindrome, as the UIDAI has it. Nor are they three years."""
    years = all(number[at : at + 2] in ("19", "20") for at in (0, 4, 8))
    return not years and number != number[::-1] and verhoeff(number)


IN_AADHAAR = numbered(
    "IN_AADHAAR",
    [Form(r"(?<!\d[ -].)\d{3}([ -]?)\d{4}\1\d{4}(?![ -]\d)", first="[2-9]")],
    is_aadhaar,
    r"aadh?aar uidai uid\b आधार",
    alone=0.3,
    written=0.55,
    longest=14,
)
IN_PAN = numbered(
    "IN_PAN",
    [Form(r"\d{3}[A-Z]", before="[A-Z]{3}[ABCFGHJLPT][A-Z]", width=5)],
    lambda number: number[5:9] != "0000",
    r"pan\b permanent\saccount income\stax tax",
    alone=0.55,
    longest=10,
)
