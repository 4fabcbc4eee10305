"""What patterns, checksums and the words around can find of personal data: one file a family of entities."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.pii.patterns import (
    birth,
    card,
    crypto,
    email,
    europe,
    germany,
    iban,
    network,
    others,
    phone,
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
    europe.FR_NIR,
    others.IN_AADHAAR,
    others.IN_PAN,
    others.BR_CPF,
    others.BR_CNPJ,
    europe.ES_NIF,
    europe.ES_NIE,
    europe.IT_FISCAL_CODE,
    europe.PL_PESEL,
    europe.NL_BSN,
    europe.CH_AHV,
    europe.BE_NATIONAL_NUMBER,
    europe.SE_PERSONNUMMER,
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
