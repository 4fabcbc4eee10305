"""What patterns, checksums and the words around can find of personal data: one file a family of entities."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.pii.patterns import (
    birth,
    brazil,
    card,
    crypto,
    email,
    france,
    germany,
    iban,
    india,
    italy,
    netherlands,
    network,
    others,
    phone,
    poland,
    spain,
    uk,
    url,
    us,
)
from gateway.pii.patterns.pattern import Pattern

_NATIONAL = (
    us.US_SSN,
    us.US_ITIN,
    uk.UK_NHS,
    uk.UK_NINO,
    germany.DE_TAX_ID,
    germany.DE_SOCIAL_SECURITY,
    germany.DE_HEALTH_INSURANCE,
    germany.DE_ID_CARD,
    germany.DE_PASSPORT,
    france.FR_NIR,
    india.IN_AADHAAR,
    india.IN_PAN,
    brazil.BR_CPF,
    brazil.BR_CNPJ,
    spain.ES_NIF,
    spain.ES_NIE,
    italy.IT_FISCAL_CODE,
    poland.PL_PESEL,
    netherlands.NL_BSN,
    others.CH_AHV,
    others.BE_NATIONAL_NUMBER,
    others.SE_PERSONNUMMER,
    others.CN_RESIDENT_ID,
    others.CA_SIN,
)

NATIONAL = tuple(pattern.entity for pattern in _NATIONAL)
"""Numbers that states give to persons."""

PATTERNS: Mapping[str, Pattern] = {
    pattern.entity: pattern
    for pattern in (
        email.EMAIL_ADDRESS,
        phone.PHONE_NUMBER,
        card.CREDIT_CARD,
        iban.IBAN_CODE,
        *_NATIONAL,
        birth.DATE_OF_BIRTH,
        us.US_PASSPORT,
        us.US_DRIVER_LICENSE,
        network.IP_ADDRESS,
        network.MAC_ADDRESS,
        url.URL,
        crypto.CRYPTO,
    )
}
"""By Presidio's name of the entity, where it has one."""
