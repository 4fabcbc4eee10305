"""A tenant's data key: what its recorded requests are encrypted with, and what their hashes are keyed with."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_KEY = 32


@dataclass(frozen=True)
class DataKey:
    """Without it nothing that it sealed is ever read again."""

    TAG: ClassVar[int] = 16
    """Bytes by which what is sealed is longer."""
    id: bytes
    tenant: str
    secret: bytes = field(repr=False)

    @classmethod
    def made(cls, tenant: str) -> DataKey:
        return cls(secrets.token_bytes(16), tenant, secrets.token_bytes(_KEY))

    def seal(self, nonce: bytes, content: bytes, bound_to: bytes) -> bytes:
        return self._cipher.encrypt(nonce, content, bound_to)

    def open(self, nonce: bytes, sealed: bytes, bound_to: bytes) -> bytes | None:
        """None for what was not sealed with it, or was changed."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(nonce, sealed, bound_to)
        except InvalidTag:
            return None

    @cached_property
    def hashing(self) -> bytes:
        """A key for hashes of this tenant's texts."""
        return blake2b(b"hashes", key=self.secret, digest_size=_KEY).digest()

    @cached_property
    def _cipher(self) -> AESGCM:
        # Most workers record nothing, and the library is among the largest.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self.secret)
