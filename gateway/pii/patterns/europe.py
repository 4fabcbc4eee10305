"""Numbers of persons in France (of the INSEE's register, which social security uses), Italy (the tax code), the
Netherlands (BSN), Poland (PESEL), Spain (of citizens: DNI, NIF; of foreigners: NIE), Switzerland, Belgium, Sweden.
"""

from __future__ import annotations

from gateway.pii.patterns.check_digits import luhn, weighted
from gateway.pii.patterns.numbered import Form, is_date, numbered


def is_nir(number: str) -> bool:
    """Sex, year, month, department, commune, serial; and 97 minus the rest of a division by 97."""
    month = int(number[3:5])
    digits = number[:13].replace("2A", "19").replace("2B", "18")
    born = 1 <= month <= 12 or 20 <= month <= 42 or month >= 50
    return born and digits.isdigit() and int(number[13:]) == 97 - int(digits) % 97


FR_NIR = numbered(
    "FR_NIR",
    [Form(r" ?\d{2} ?\d{2} ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2}", first="[12378]")],
    is_nir,
    r"nir\b s[ée]curit[ée]\ssociale s[ée]cu\b insee immatriculation vitale social\ssecurity",
    alone=0.7,
    written=0.85,
    longest=21,
)


_ODD = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
"""What a letter is worth at the first, third … place; a digit is worth what the letter of its rank is."""


def is_fiscal_code(code: str) -> bool:
    """The last letter is the sum of the others modulo 26 (decree of 23 December 1976)."""
    ranks = [int(sign) if sign.isdigit() else ord(sign) - 65 for sign in code[:15]]
    total = sum(_ODD[rank] for rank in ranks[::2]) + sum(ranks[1::2])
    return total % 26 == ord(code[15]) - 65


# Where two people would have the same code, letters stand for digits, from the last one on.
_D = "[0-9LMNP-V]"
IT_FISCAL_CODE = numbered(
    "IT_FISCAL_CODE",
    [
        Form(rf"{_D}[ABCDEHLMPRST]{_D}{{2}} ?[A-Z]{_D}{{3}}[A-Z]", before=before, width=width)
        for before, width in (("[A-Z]{6}", 6), ("[A-Z]{3} [A-Z]{3} ", 8))
    ],
    is_fiscal_code,
    r"codice c\.?f\.?\b fiscal tax",
    alone=0.9,
    longest=19,
)


def is_bsn(number: str) -> bool:
    """The test of eleven, in which the last digit counts minus one."""
    nine = number.zfill(9)
    return len(set(nine)) > 1 and weighted(nine, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0


NL_BSN = numbered(
    "NL_BSN",
    [Form(r"(?:\d{7,8}|\d\d([ .-])\d{3}\1\d{3}|\d{3}([ .-])\d\d\2\d{3})")],
    is_bsn,
    r"bsn\b burgerservice sofi",
    only_with="bsn burgerservice sofi",
    longest=11,
)


def is_pesel(number: str) -> bool:
    """Birthday, with the century in the month, serial and check digit."""
    born = is_date(0, int(number[2:4]) % 20, int(number[4:6]))
    return born and weighted(number, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)) % 10 == 0


PL_PESEL = numbered("PL_PESEL", [Form(r"\d{10}")], is_pesel, r"pesel", only_with="pesel", longest=11)


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


def is_ahv(number: str) -> bool:
    """EAN-13 under Switzerland's 756."""
    return weighted(number, (1, 3) * 6 + (1,)) % 10 == 0


CH_AHV = numbered(
    "CH_AHV",
    [Form(r"56([ .-]?)\d{4}\1\d{4}\1\d{2}", first="7")],
    is_ahv,
    r"ahv avs\b navs versicherten oasi sozialversicherung",
    alone=0.5,
    written=0.9,
    longest=16,
)


def is_national_number(number: str) -> bool:
    """Birthday, serial, and 97 minus the rest modulo 97, with a 2 in front for those born from 2000 on."""
    month = int(number[2:4]) % 20
    born = month == 0 or is_date(0, month, int(number[4:6]) or 1)
    return born and int(number[9:]) in (97 - int(century + number[:9]) % 97 for century in ("", "2"))


BE_NATIONAL_NUMBER = numbered(
    "BE_NATIONAL_NUMBER",
    [Form(r"\d(?:[. ]\d{2}[. ]\d{2}[- .]\d{3}[. -]\d{2}|\d{4}-\d{3}[. -]?\d{2}|\d{9})")],
    is_national_number,
    r"rijksregister insz niss registre\snational num[ée]ro\snational national\snumber",
    alone=0.3,
    written=0.8,
    longest=15,
)


def is_personnummer(number: str) -> bool:
    """Birthday, serial and Luhn's check digit over the last ten digits; 60 more on the day for coordination numbers."""
    ten = number.replace("+", "")[-10:]
    day = int(ten[4:6])
    return is_date(0, int(ten[2:4]), day if day <= 31 else day - 60) and luhn(ten)


SE_PERSONNUMMER = numbered(
    "SE_PERSONNUMMER",
    [Form(r"\d{5}(?:\d\d)?[-+]?\d{4}")],
    is_personnummer,
    r"person\s?n(?:umme)?r personal\snumber samordningsnummer",
    alone=0.3,
    written=0.55,
    longest=13,
)
