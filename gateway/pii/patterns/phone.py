"""Telephone numbers, in international form (ITU-T E.123) and as many countries write their own.

Some forms speak for themselves; others (``467 3395``) are as often something else, and count where a telephone is
spoken of nearby.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.findings import Finding
from gateway.pii.patterns.pattern import ContextWords, Pattern

_CANDIDATE = re.compile(
    r"\d(?<![\w/&?%$€£¥-]\d)(?<!\d[ :(+.,]\d)(?<!&#\d)"
    r"(?:[ .\-/]?\(?\d|(?:\) ?|\)[-./]?)\d){6,18}"
    r"(?P<extension>(?:,? ?(?:x|ext\.?|extn\.?|extension|#) ?)\d{1,6})?(?!\d|[.,:]\d|[%$€£]|[/-]\w{0,3}\d)",
    re.IGNORECASE | re.ASCII,
)
_SHAPES = re.compile(
    r"\+[1-9][\d ().\-/]{6,22}\Z"  # international
    r"|00[1-9]\d{0,2}[ .\-/(][\d ().\-/]{6,20}\Z"  # international, as dialled in Europe
    r"|001-\d{3}-\d{3}-\d{4}\Z"
    r"|(?:1[ .-]?)?(?:\([2-9]\d\d\) ?|[2-9]\d\d([.-]))[2-9]\d\d[ .-]\d{4}\Z"  # North America
    r"|[2-9]\d\d ([2-9]\d\d)[ -]\d{4}\Z"
    r"|\(0\d{1,5}\)[ -]?\d{2,4}(?:[ .\-]?\d{2,5}){1,3}\Z"  # area code in parentheses
    r"|\(\d{2,3}\) ?\d{3,5}[ -]\d{3,4}\Z"
    r"|0\d([ .-])\d\d(?:\3\d\d){3}\Z"  # France
    r"|0[1-9]\d{1,3}([ .-])\d{2,4}(?:\4\d{2,4}){1,3}\Z"  # trunk prefix and groups
    r"|0[1-9]\d{1,4}[ \-/]\d{5,8}\Z"
)
_CONTEXT = ContextWords(
    r"""
    phone telephone tele?\b tel\. mobile cell\b cellphone call(?:ed|ing|s|er|back)?\b fax\b dial desk\b
    office(?:\sphone|\sno\.?|\snumber)?[:\s]{0,3}\Z whatsapp sms\b texts?\sme text messages? contact
    reach ring hotline helpline answering voicemail landline pager handset
    registered\s(?:number\s|no\.?\s)?\Z telefon telefoon telefono teléfono telefone téléphone téléphoner
    handy anruf rufnummer mobil portable appel móvil movil celular llam cellulare chiama telemóvel
    lig(?:a|ue) mobiel bel\b komórk dzwo puhelin gsm телефон тел\b моб звон 電話 电话 전화
    """,
    r"""
    order invoice tracking serial isbn issn account ticket case card cc\b zip postal postcode ssn\b
    social\ssecurity licen[sc]e passport version sku part model receipt reference ref\b id\b iban routing
    population total amount price cost usd eur box patent doi timestamp epoch build commit issue pages?
    lines? bytes rows nhs ips?\b bestell rechnung commande facture pedido factura
    """,
    r"office fax mobile cell phone home work tel desk landline",
)
_DATE = re.compile(
    r"(?:19|20)\d\d([ .\-/])\d{1,2}\1\d{1,2}(?!\d)|\d{1,2}([ .\-/])\d{1,2}\2(?:19|20)\d\d(?!\d)", re.ASCII
)
_EPOCH = re.compile(r"1\d{9}(?:\d{3})?\Z", re.ASCII)
"""Seconds or milliseconds since 1970."""
_DECIMAL = re.compile(r"\d{1,3}(?:\.\d{3})+\Z|\d+\.\d+\Z", re.ASCII)


def find(text: str) -> Iterator[Finding]:
    surroundings = _CONTEXT.of(text)
    for match in _CANDIDATE.finditer(text):
        start, end = match.span()
        # The opening of a number is looked for backwards, so that the search may run from digit to digit.
        if text.startswith("(", start - 1) and ")" in match[0]:
            start -= 1
        if start and text[start - 1] == "+":
            start -= 1
        last = match.start("extension") if match["extension"] else end
        number = text[start:last]
        digits = sum(map(str.isdigit, number))
        if not 7 <= digits <= 15 or number.count("(") != number.count(")") or _DATE.match(number.lstrip("(")):
            continue
        context = surroundings(start, end)
        shaped = _SHAPES.match(number) is not None
        if not shaped and (_DECIMAL.match(number) or _EPOCH.match(number)):
            continue
        if shaped:
            score = 0.9 if context > 0 or number[0] == "+" else 0.7 if context == 0 else 0.4
        else:
            score = 0.65 if context > 0 else 0.3 if context == 0 else 0.1
        yield Finding("PHONE_NUMBER", start, end, score)


PHONE_NUMBER = Pattern("PHONE_NUMBER", 40 + ContextWords.BEFORE, find, needs="0-9")
