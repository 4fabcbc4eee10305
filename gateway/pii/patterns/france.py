"""Numbers of persons in France: the one in the INSEE's register, which social security uses."""

from __future__ import annotations

from gateway.pii.patterns.numbered import Form, numbered


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
