"""Check digits, by which a number of a person is told from any other."""

from __future__ import annotations

from collections.abc import Sequence

_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
_TURNED = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 5, 7, 6, 2, 8, 3, 0, 9, 4), (5, 8, 0, 3, 7, 9, 6, 1, 4, 2),
    (8, 9, 1, 6, 0, 4, 3, 5, 2, 7), (9, 4, 5, 3, 1, 2, 6, 8, 7, 0), (4, 2, 8, 6, 5, 7, 3, 9, 0, 1),
    (2, 7, 9, 3, 8, 0, 6, 4, 1, 5), (7, 0, 4, 6, 9, 1, 3, 2, 5, 8),
)  # fmt: skip
"""Verhoeff's permutation, applied 0 to 7 times."""


def luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of the others (ISO/IEC 7812-1, annex B)."""
    total = sum(map(int, digits[-1::-2])) + sum(_DOUBLED[int(digit)] for digit in digits[-2::-2])
    return total % 10 == 0


def verhoeff(digits: str) -> bool:
    """Whether the product of the turned digits in the dihedral group of order 10 is 0 (Verhoeff 1969)."""
    check = 0
    for place, digit in enumerate(reversed(digits)):
        check = _product(check, _TURNED[place % 8][int(digit)])
    return check == 0


def _product(left: int, right: int) -> int:
    """In the dihedral group of order 10: 0 to 4 are rotations of a pentagon, 5 to 9 reflections."""
    if left < 5:
        return (left + right) % 5 + (5 if right >= 5 else 0)
    return (left - right) % 5 + (5 if right < 5 else 0)


def mod_11_10(digits: str) -> bool:
    """ISO 7064, MOD 11,10."""
    check = 10
    for digit in digits[:-1]:
        total = (check + int(digit)) % 10 or 10
        check = total * 2 % 11
    return (11 - check) % 10 == int(digits[-1])


def weighted(digits: str, weights: Sequence[int]) -> int:
    """The sum of the digits, each times its weight."""
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=True))


def cross_sum(number: int) -> int:
    """Of a number of two digits."""
    return number // 10 + number % 10
