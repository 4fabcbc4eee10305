"""Numbers of persons in Poland: PESEL."""

from __future__ import annotations

from gateway.pii.patterns.check_digits import weighted
from gateway.pii.patterns.numbered import Form, is_date, numbered


def is_pesel(number: str) -> bool:
    """Birthday, with the century in the month, serial and check digit."""
    born = is_date(0, int(number[2:4]) % 20, int(number[4:6]))
    return born and weighted(number, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)) % 10 == 0


PL_PESEL = numbered("PL_PESEL", [Form(r"\d{10}")], is_pesel, r"pesel", only_with="pesel", longest=11)
