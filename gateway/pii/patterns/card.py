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


TEST_CARDS = frozenset(
    (
        "4242424242424242", "4000056655665556", "4111111111111111", "4012888888881881", "4222222222222",
        "4000000000000002", "4000000000000077", "4000000000000341", "4000000000009995", "4000002500003155",
        "4000002760003184", "4000000000003220", "4005519200000004", "4009348888881881", "4012000033330026",
        "4012000077777777", "4217651111111119", "4500600000000061", "4917610000000000", "4988438843884305",
        "4166676667666746", "4646464646464644", "4444333322221111", "4035501000000008", "5555555555554444",
        "5105105105105100", "5200828282828210", "2223003122003222", "2222405343248877", "5555341244441115",
        "5100290029002909", "5577000055770004", "5136333333333335", "5454545454545454", "5431111111111111",
        "2223000048400011", "378282246310005", "371449635398431", "378734493671000", "370000000000002",
        "341111111111111", "343434343434343", "6011111111111117", "6011000990139424", "6011981111111113",
        "6445644564456445", "6011601160116611", "30569309025904", "38520000023237", "3056930009020004",
        "36227206271667", "36006666333344", "36148900647913", "3566002020360505", "3530111333300000",
        "3569990010095841", "6200000000000005", "6205500000000000004", "6250941006528599", "6304000000000000",
        "6759649826438453", "5018000000000009", "6771798021000008",
    )
)  # fmt: skip
"""Card numbers that payment providers publish for tests. They belong to nobody."""
