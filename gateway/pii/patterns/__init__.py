"""What patterns, checksums and the words around can find of personal data: one file a family of entities."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.pii.patterns import card, crypto, email, iban, network, phone, uk, url, us
from gateway.pii.patterns.pattern import Pattern

PATTERNS: Mapping[str, Pattern] = {
    pattern.entity: pattern
    for pattern in (
        email.EMAIL_ADDRESS,
        phone.PHONE_NUMBER,
        card.CREDIT_CARD,
        iban.IBAN_CODE,
        us.US_SSN,
        us.US_ITIN,
        us.US_PASSPORT,
        us.US_DRIVER_LICENSE,
        uk.UK_NHS,
        uk.UK_NINO,
        network.IP_ADDRESS,
        network.MAC_ADDRESS,
        url.URL,
        crypto.CRYPTO,
    )
}
"""By Presidio's name of the entity."""
