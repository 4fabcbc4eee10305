"""Numbers of persons in Germany: tax, pension and health insurance, identity card, passport."""

from __future__ import annotations

from collections import Counter

from gateway.pii.patterns.check_digits import cross_sum, mod_11_10
from gateway.pii.patterns.numbered import Form, is_date, numbered


def is_tax_id(number: str) -> bool:
    """One of the first ten digits comes twice or three times, all others at most once (section 139b AO)."""
    counts = Counter(number[:10]).most_common(2)
    twice, next_ = counts[0][1], counts[1][1] if len(counts) > 1 else 0
    return twice in (2, 3) and next_ == 1 and mod_11_10(number)


def is_pension_number(number: str) -> bool:
    """Area, birthday, letter, serial and check digit (annex 1 of the VKVV)."""
    letter = f"{ord(number[8]) - 64:02}"
    digits = number[:8] + letter + number[9:11]
    total = sum(
        cross_sum(int(digit) * weight)
        for digit, weight in zip(digits, (2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1), strict=True)
    )
    day = int(number[2:4])
    return is_date(0, int(number[4:6]), day if day <= 31 else day - 50) and total % 10 == int(number[11])


def is_health_number(number: str) -> bool:
    """A letter, eight digits and a check digit (section 290 SGB V)."""
    digits = f"{ord(number[0]) - 64:02}" + number[1:9]
    total = sum(cross_sum(int(digit) * weight) for digit, weight in zip(digits, (1, 2) * 5, strict=True))
    return total % 10 == int(number[9])


def is_document(number: str) -> bool:
    """Nine letters and digits with the check digit of ICAO 9303, or without it."""
    if sum(map(str.isdigit, number)) < 2:
        return False
    if len(number) == 9:
        return True
    values = [int(sign, 36) for sign in number[:9]]
    total = sum(value * weight for value, weight in zip(values, (7, 3, 1) * 3, strict=True))
    return total % 10 == int(number[9])


_DOCUMENT = [Form(r"[CFGHJKLMNPRTVWXYZ0-9]{8}(?: ?\d)?", first="[CFGHJKLMNPRTVWXYZ]")]

DE_TAX_ID = numbered(
    "DE_TAX_ID",
    [Form(r"(?:\d{10}|\d[ ./-]\d{3}[ ./-]\d{3}[ ./-]\d{3})", first="[1-9]")],
    is_tax_id,
    r"steuer idnr tax\b tin\b identifikationsnummer",
    alone=0.6,
    written=0.75,
    longest=14,
)
DE_SOCIAL_SECURITY = numbered(
    "DE_SOCIAL_SECURITY",
    [Form(r"\d ?\d{6} ?[A-Z] ?\d{3}")],
    is_pension_number,
    r"rentenversicherung sozialversicherung rvnr svnr sv-nummer versicherungsnummer social\ssecurity pension",
    alone=0.75,
    longest=15,
)
DE_HEALTH_INSURANCE = numbered(
    "DE_HEALTH_INSURANCE",
    [Form(r"\d{8}", before="[A-Z]", width=1)],
    is_health_number,
    r"krankenversicher krankenkasse kvnr versichertennummer gesundheitskarte health\sinsurance",
    only_with="krankenversicher krankenkasse kvnr versicherten gesundheitskarte health",
    longest=10,
)
DE_ID_CARD = numbered(
    "DE_ID_CARD",
    _DOCUMENT,
    is_document,
    r"personalausweis ausweis perso\b id\scard identity\scard",
    only_with="ausweis perso card",
    longest=11,
)
DE_PASSPORT = numbered(
    "DE_PASSPORT",
    _DOCUMENT,
    is_document,
    r"reisepass pass(?:nummer|nr|-nr)?\b passport",
    only_with="pass",
    longest=11,
)
