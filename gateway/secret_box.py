"""Bytes that only this gateway reads again, though others keep them: encrypted and authenticated (AES-GCM)."""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = 12


class SecretBox:
    """For one ``purpose``: what was sealed for another does not open. ``secret`` is the gateway's."""

    def __init__(self, secret: str, purpose: str) -> None:
        self._key = sha256(b"tollgate " + purpose.encode() + b"\0" + secret.encode()).digest()

    def seal(self, content: bytes, bound_to: str = "") -> str:
        """``content`` as text, which opens for the same ``bound_to`` alone."""
        nonce = secrets.token_bytes(_NONCE)
        return _written(nonce + self._cipher.encrypt(nonce, content, bound_to.encode()))

    def open(self, text: str, bound_to: str = "") -> bytes | None:
        """None for what was not sealed here, or was changed."""
        from cryptography.exceptions import InvalidTag  # with the cipher, as it is first needed

        try:
            sealed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            if _written(sealed) != text:  # one text only for each content
                return None
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], bound_to.encode())
        except (ValueError, InvalidTag):
            return None

    @cached_property
    def _cipher(self) -> AESGCM:
        # Most workers seal nothing, and the library is among the largest.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._key)


def _written(sealed: bytes) -> str:
    return urlsafe_b64encode(sealed).rstrip(b"=").decode()
