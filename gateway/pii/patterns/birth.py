"""Dates of birth: a date before which a birth is spoken of."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.findings import Finding
from gateway.pii.patterns.pattern import ContextWords, Pattern

_MONTHS = (
    r"jan(?:uary|uar|uari|vier|eiro)?|feb(?:ruary|ruar|ruari|rero|braio)?|f[ée]vr(?:ier)?|fevereiro|mar(?:ch|s|zo|ço)?|märz|maart"
    r"|apr(?:il|ile)?|avril|abr(?:il)?|may|mai|mayo|mei|maggio|maio|jun[ei]?|juin|junio|junho|giugno|jul[yi]?|juillet|julio"
    r"|julho|luglio|aug(?:ust|ustus)?|ao[ûu]t|ago(?:sto)?|sep(?:t|tember|tembre|tiembre)?|set(?:tembre|embro)?"
    r"|o[ck]t(?:ober|obre|ubre)?|ott(?:obre)?|out(?:ubro)?|nov(?:ember|embre|iembre|embro)?|de[cz](?:ember|embro)?"
    r"|d[ée]cembre|dic(?:iembre|embre)?|ene(?:ro)?|gen(?:naio)?|januari|jänner"
    r"|stycznia|lutego|marca|kwietnia|maja|czerwca|lipca|sierpnia|września|października|listopada|grudnia"
)
_YEAR = r"(?:19|20)\d\d"
_DATE = re.compile(
    rf"\d(?<!\w\d)(?<![.,/-]\d)(?:\d{{3}}([./-])\d{{1,2}}\1\d{{1,2}}|\d{{3}}年\d{{1,2}}月\d{{1,2}}日"
    rf"|\d?([./-] ?)\d{{1,2}}\2(?:{_YEAR}|\d\d)"
    rf"|\d?(?:st|nd|rd|th|er|º|\.)?(?: of| de)?[ -](?:{_MONTHS})\.?,?(?: de| del)?[ -]{_YEAR})(?![\w]|[./-]\d)",
    re.IGNORECASE,
)
_NAMED = re.compile(
    rf"(?<!\w)(?:{_MONTHS})\.? \d{{1,2}}(?:st|nd|rd|th)?,? {_YEAR}(?!\w)",
    re.IGNORECASE,
)
_BIRTH = ContextWords(
    r"""
    born birth d\.?o\.?b\b geboren geburt geb\. née?\b naissance naci(?:d[oa]|ó|miento)\b nat[oa]\b nascita nascid[oa]\b
    nascimento geboorte urodz ur\. född født syntynyt
    """,
    r"""
    died death founded established married since until expires? expiry valid issued invoice due order(?:ed)? released
    updated appointment gestorben † décès gültig rechnung
    """,
)
_HINTS = (
    "born", "birth", "dob", "d.o.b", "geb", "né", "naiss", "naci", "nat", "nasc", "urodz", "ur.", "född", "født",
    "syntynyt", "出生", "生日", "生年月日",
)  # fmt: skip
_CHINESE = re.compile("出生|生年月日|生日")


def find(text: str) -> Iterator[Finding]:
    lowered = text.lower()
    if not any(hint in lowered for hint in _HINTS):
        return
    for pattern in (_DATE, _NAMED):
        surroundings = _BIRTH.of(text)
        for match in pattern.finditer(text):
            start, end = match.span()
            before = max(0, start - ContextWords.BEFORE)
            if surroundings(start, end) > 0 or _CHINESE.search(text, before, start):
                yield Finding("DATE_OF_BIRTH", start, end, 0.9)


DATE_OF_BIRTH = Pattern("DATE_OF_BIRTH", 32 + ContextWords.BEFORE, find, needs="0-9")
