"""Numbers of persons in the Netherlands: the citizen service number."""

from __future__ import annotations

from gateway.pii.patterns.check_digits import weighted
from gateway.pii.patterns.numbered import Form, numbered


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
