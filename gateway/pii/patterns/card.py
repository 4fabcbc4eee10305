"""Payment card numbers: ISO/IEC 7812 issuers, lengths and check digit."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.findings import Finding
from gateway.pii.patterns.check_digits import luhn
from gateway.pii.patterns.pattern import ContextWords, Pattern

_CANDIDATE = re.compile(
    r"\d(?<![\w.,+-]\d)(?:\d{11,18}|\d{3}(?:(?P<four>[ .-]{1,2})\d{4}(?:(?P=four)\d{4}){2}(?:(?P=four)\d{3})?"
    r"|(?P<six>[ .-]{1,2})\d{6}(?P=six)\d{4,5})"
    # As people type them, in uneven groups: only where a card is spoken of.
    r"|(?P<uneven>(?:[ .-]{0,2}\d){12,18}))(?![\w-]|[.,]\d)",
    re.ASCII,
)
_SEPARATORS = str.maketrans("", "", " .-")
_ISSUERS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})\Z"  # Visa
    r"|5[1-5]\d{14}\Z"  # Mastercard
    r"|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}\Z"
    r"|3[47]\d{13}\Z"  # American Express
    r"|3(?:0[0-59]|[689]\d)\d{11,16}\Z"  # Diners Club
    r"|35(?:\d{14}|(?:2[89]|[3-8]\d)\d{13,15})\Z|(?:2131|1800)\d{11}\Z"  # JCB
    r"|6(?:011|22\d|4[4-9]\d|5\d\d)\d{12,15}\Z"  # Discover
    r"|(?:62|81)\d{14,17}\Z"  # UnionPay
    r"|220[0-4]\d{12,15}\Z"  # Mir
    r"|(?:5018|5020|5038|5[678]\d\d|6304|6390|67\d\d|0604)\d{8,15}\Z"  # Maestro
    r"|(?:60|65|81|82|508)\d{13,14}\Z"  # RuPay
)
_CONTEXT = ContextWords(
    r"""
    card(?!i) credit debit visa\b master\s?card amex\b american\sexpress discover diners maestro jcb\b
    cc\b pan\b kredit karten carte tarjeta carta cartão cartao kaart kort karta kart карт billing payment
    charge
    """,
    r"""
    order invoice tracking serial imei isbn ean upc ticket timestamp transaction\sid
    """,
)


def find(text: str) -> Iterator[Finding]:
    surroundings = _CONTEXT.of(text)
    for match in _CANDIDATE.finditer(text):
        digits = match[0].translate(_SEPARATORS)
        if not _ISSUERS.match(digits) or not luhn(digits) or digits.count(digits[0]) == len(digits):
            continue
        context = surroundings(match.start(), match.end())
        # Every tenth number has a right check digit: the less a number looks like a card otherwise,
        # the more the words around it must say so.
        common = not match["uneven"] and (
            len(digits) in (15, 16) or len(digits) != match.end() - match.start()
        )
        score = (
            0.95 if context > 0 else (0.7 if common else 0.3) if context == 0 else (0.4 if common else 0.1)
        )
        yield Finding("CREDIT_CARD", match.start(), match.end(), score)


CREDIT_CARD = Pattern("CREDIT_CARD", 19 + 2 * 18 + ContextWords.BEFORE, find, needs="0-9")
