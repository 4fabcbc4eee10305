"""API keys: making them, and finding whom a presented one belongs to."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import NamedTuple

from gateway.errors import Unauthenticated
from gateway.policy.schema import Key
from gateway.types import Principal

PREFIX = "tg-"
DEVELOPMENT = Principal(key_id="dev", tenant="default", models=("*",))
"""Whom the development key stands for."""


def make_key() -> str:
    """A new key: ``tg-`` and 32 random bytes in base64url."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> str:
    """The SHA-256 of a key in lower-case hex, as a policy holds it.

    Neither salt nor stretching is needed: a key is 256 random bits, not a password that could be guessed.
    """
    return _digest(key).hex()


class _Held(NamedTuple):
    principal: Principal
    expires: float
    on: date | None


class KeyRing:
    """The keys in force.

    A presented key is hashed and the digest looked up in a dict. How long the lookup takes can tell something
    about digests only, and from those no key can be computed; comparing secrets themselves would tell about them.
    """

    def __init__(self, keys: Iterable[Key], *, dev_key_sha256: str | None = None) -> None:
        """The development key counts only where a policy has no keys of its own."""
        self._held = {
            bytes.fromhex(key.sha256): _Held(
                Principal(key_id=key.id, tenant=key.tenant, models=key.models),
                _midnight(key.expires),
                key.expires,
            )
            for key in keys
        }
        if dev_key_sha256 and not self._held:
            self._held[bytes.fromhex(dev_key_sha256)] = _Held(DEVELOPMENT, float("inf"), None)

    def __len__(self) -> int:
        return len(self._held)

    def find(self, presented: str, now: float) -> Principal:
        """Whose key it is, at Unix time ``now``.

        Raises ``Unauthenticated``: code ``expired_api_key`` for a known key that has expired, else
        ``invalid_api_key``.
        """
        held = self._held.get(_digest(presented))
        if held is None:
            raise Unauthenticated("Unknown API key. Check that it was copied whole, or ask for a new one.")
        if now >= held.expires:
            raise Unauthenticated(
                f"This API key expired on {held.on}. Ask for a new one.", code="expired_api_key"
            )
        return held.principal


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


def _midnight(day: date | None) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() if day else float("inf")
