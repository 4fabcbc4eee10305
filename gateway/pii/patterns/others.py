"""Numbers of persons in Switzerland, Belgium, Sweden, China and Canada."""

from __future__ import annotations

from gateway.pii.patterns.check_digits import luhn, weighted
from gateway.pii.patterns.numbered import Form, is_date, numbered


def is_ahv(number: str) -> bool:
    """EAN-13 under Switzerland's 756."""
    return weighted(number, (1, 3) * 6 + (1,)) % 10 == 0


def is_national_number(number: str) -> bool:
    """Birthday, serial, and 97 minus the rest modulo 97, with a 2 in front for those born from 2000 on."""
    month = int(number[2:4]) % 20
    born = month == 0 or is_date(0, month, int(number[4:6]) or 1)
    return born and int(number[9:]) in (97 - int(century + number[:9]) % 97 for century in ("", "2"))


def is_personnummer(number: str) -> bool:
    """Birthday, serial and Luhn's check digit over the last ten digits; 60 more on the day for coordination numbers."""
    ten = number.replace("+", "")[-10:]
    day = int(ten[4:6])
    return is_date(0, int(ten[2:4]), day if day <= 31 else day - 60) and luhn(ten)


def is_resident_number(number: str) -> bool:
    """Area, birthday, serial, and ISO 7064 MOD 11-2 (GB 11643)."""
    weights = [pow(2, 17 - place, 11) for place in range(17)]
    rest = (12 - weighted(number[:17], weights) % 11) % 11
    return is_date(0, int(number[10:12]), int(number[12:14])) and "0123456789X"[rest] == number[17]


def is_sin(number: str) -> bool:
    """Luhn; none begins with 8. Those that begin with 0 are made up, as documents' samples are."""
    return number[0] != "8" and luhn(number)


CH_AHV = numbered(
    "CH_AHV",
    [Form(r"56([ .-]?)\d{4}\1\d{4}\1\d{2}", first="7")],
    is_ahv,
    r"ahv avs\b navs versicherten oasi sozialversicherung",
    alone=0.5,
    written=0.9,
    longest=16,
)
BE_NATIONAL_NUMBER = numbered(
    "BE_NATIONAL_NUMBER",
    [Form(r"\d(?:[. ]\d{2}[. ]\d{2}[- .]\d{3}[. -]\d{2}|\d{4}-\d{3}[. -]?\d{2}|\d{9})")],
    is_national_number,
    r"rijksregister insz niss registre\snational num[ée]ro\snational national\snumber",
    alone=0.3,
    written=0.8,
    longest=15,
)
SE_PERSONNUMMER = numbered(
    "SE_PERSONNUMMER",
    [Form(r"\d{5}(?:\d\d)?[-+]?\d{4}")],
    is_personnummer,
    r"person\s?n(?:umme)?r personal\snumber samordningsnummer",
    alone=0.3,
    written=0.55,
    longest=13,
)
CN_RESIDENT_ID = numbered(
    "CN_RESIDENT_ID",
    [Form(r"\d{5}(?:19|20)\d{9}[\dX]", first="[1-8]")],
    is_resident_number,
    r"身份证 身份證 居民 resident id\scard",
    alone=0.85,
    longest=18,
)
CA_SIN = numbered(
    "CA_SIN",
    [Form(r"\d\d([ -]?)\d{3}\1\d{3}")],
    is_sin,
    r"sin\b social\sinsurance assurance\ssociale nas\b",
    only_with="sin nas assurance",
    longest=11,
)
