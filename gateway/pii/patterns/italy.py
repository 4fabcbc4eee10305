"""Numbers of persons in Italy: the tax code."""

from __future__ import annotations

from gateway.pii.patterns.numbered import Form, numbered

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
