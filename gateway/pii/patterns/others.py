"""Numbers of persons in Brazil (of firms, too: CPF and CNPJ), India (Aadhaar, and the PAN of the tax department), China
and Canada.
"""

from __future__ import annotations

from gateway.pii.patterns.check_digits import luhn, verhoeff, weighted
from gateway.pii.patterns.numbered import Form, is_date, numbered


def is_cpf(number: str) -> bool:
    """Two check digits modulo 11; of eleven equal digits they are right, but nobody has them."""
    return len(set(number)) > 1 and all(
        _check(number[:end], range(end + 1, 1, -1)) == int(number[end]) for end in (9, 10)
    )


def is_cnpj(number: str) -> bool:
    """The same over letters too, which firms have from July 2026 on."""
    weights = (6, 5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2)
    return len(set(number)) > 1 and all(
        _check(number[:end], weights[13 - end :]) == int(number[end]) for end in (12, 13)
    )


def _check(signs: str, weights: range | tuple[int, ...]) -> int:
    """Letters count as their place in ASCII, from 0 on."""
    rest = sum((ord(sign) - 48) * weight for sign, weight in zip(signs, weights, strict=True)) % 11
    return 0 if rest < 2 else 11 - rest


BR_CPF = numbered(
    "BR_CPF",
    [Form(r"\d\d(?:([. -])\d{3}\1\d{3}[-. /]\d\d|\d{6}-\d\d|\d{8})")],
    is_cpf,
    r"cpf\b cadastro\sde\spessoa",
    alone=0.3,
    written=0.85,
    longest=14,
)
BR_CNPJ = numbered(
    "BR_CNPJ",
    [
        Form(r"[A-Z\d]{4}-\d\d", first="/", before=r"[A-Z\d]{2}\.[A-Z\d]{3}\.[A-Z\d]{3}", width=10),
        Form(r"[A-Z\d]{4}-\d\d", first="/", before=r"[A-Z\d]{8}", width=8),
        Form(r"[A-Z\d]{11}\d\d"),
    ],
    is_cnpj,
    r"cnpj\b cadastro\snacional",
    alone=0.3,
    written=0.9,
    longest=18,
)


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


def is_resident_number(number: str) -> bool:
    """Area, birthday, serial, and ISO 7064 MOD 11-2 (GB 11643)."""
    weights = [pow(2, 17 - place, 11) for place in range(17)]
    rest = (12 - weighted(number[:17], weights) % 11) % 11
    return is_date(0, int(number[10:12]), int(number[12:14])) and "0123456789X"[rest] == number[17]


CN_RESIDENT_ID = numbered(
    "CN_RESIDENT_ID",
    [Form(r"\d{5}(?:19|20)\d{9}[\dX]", first="[1-8]")],
    is_resident_number,
    r"身份证 身份證 居民 resident id\scard",
    alone=0.85,
    longest=18,
)


def is_sin(number: str) -> bool:
    """Luhn; none begins with 8. Those that begin with 0 are made up, as documents' samples are."""
    return number[0] != "8" and luhn(number)


CA_SIN = numbered(
    "CA_SIN",
    [Form(r"\d\d([ -]?)\d{3}\1\d{3}")],
    is_sin,
    r"sin\b social\sinsurance assurance\ssociale nas\b",
    only_with="sin nas assurance",
    longest=11,
)
