"""API keys: making them, and finding whom a presented one belongs to."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from hashlib import sha256
from hmac import compare_digest
from ipaddress import IPv4Network, IPv6Network, ip_network

from gateway.errors import AuthUnavailable, GatewayError, Unauthenticated
from gateway.policy.revoked_keys import RevokedKeys
from gateway.policy.schema import DEFAULT_TIER, Key, Tenant
from gateway.types import Principal

PREFIX = "tg-"
DEVELOPMENT = Principal(key_id="dev", tenant="default", models=("*",))
"""Whom the development key stands for."""
_LOOK_AGAIN = 5.0
"""Seconds after which callers may ask anew whether files can be read: an operator has to mend that."""
_INDEXED = 16
"""Bytes of a digest that find an entry; all of it is then compared in constant time."""


def make_key() -> str:
    """A new key: ``tg-`` and 32 random bytes in base64url."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> str:
    """The SHA-256 of a key in lower-case hex, as a policy holds it.

    Neither salt nor stretching is needed: a key is 256 random bits, not a password that could be guessed.
    """
    return digest_of(key).hex()


def digest_of(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


def tier_of(tenant: str, tenants: Mapping[str, Tenant]) -> str:
    """The tier of those who have none of their own."""
    known = tenants.get(tenant)
    return (known.tier if known else None) or DEFAULT_TIER


def unknown_key(presented: str) -> Unauthenticated:
    """The first words are OpenAI's: clients tell by them what is wrong, as their users do by the key's ends."""
    advice = "Check that it was copied whole, or ask for a new one."
    error = Unauthenticated(f"Incorrect API key provided. {advice}")
    error.told = f"Incorrect API key provided: {masked(presented)}. {advice}"
    return error


def masked(key: str) -> str:
    """Enough of a key to know it by, and too little to use it: three characters of either end of a long one."""
    if len(key) < 16:
        return "***"
    shown = "".join(c if c.isascii() and c.isprintable() else "?" for c in key[:3] + key[-3:])
    return f"{shown[:3]}***{shown[3:]}"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key in force: whom it stands for, until when, and from where it may be used."""

    digest: bytes
    principal: Principal
    expires: float = float("inf")
    """Unix time."""
    on: date | None = None
    allow_ips: tuple[IPv4Network | IPv6Network, ...] = ()
    """Empty is anywhere."""


class KeyRing:
    """The keys in force.

    A presented key is hashed and looked up by its digest. How long the look-up takes can tell something about
    digests only, and from those no key can be computed; comparing secrets themselves would tell about them.
    """

    def __init__(
        self,
        keys: Iterable[Key],
        *,
        tenants: Mapping[str, Tenant] | None = None,
        dev_key_sha256: str | None = None,
    ) -> None:
        """The development key counts only where a policy has no keys of its own."""
        tenants = tenants or {}
        held = [_held(key, tenants) for key in keys]
        if dev_key_sha256 and not held:
            principal = replace(DEVELOPMENT, tier=tier_of(DEVELOPMENT.tenant, tenants))
            held.append(ApiKey(bytes.fromhex(dev_key_sha256), principal))
        self._held = {key.digest[:_INDEXED]: key for key in held}
        self._withdrawn = RevokedKeys()

    def __len__(self) -> int:
        return len(self._held)

    def withdraw(self, withdrawn: RevokedKeys) -> None:
        """Refuse these keys from now on, and no others."""
        self._withdrawn = withdrawn

    def held(self, digest: bytes, now: float) -> ApiKey | None:
        """The key with this SHA-256, if it counts at Unix time ``now``.

        Raises ``Unauthenticated``, code ``expired_api_key``, for one that has expired, and ``AuthUnavailable`` for one
        of which it cannot be told whether it still counts. ``allow_ips`` is the caller's to check: where a request
        comes from is known to the web side alone.
        """
        held = self._held.get(digest[:_INDEXED])
        if held is None or not compare_digest(held.digest, digest):
            return None
        if held.principal.key_id in self._withdrawn.gone:
            return None
        if held.principal.key_id in self._withdrawn.unsure:
            raise _unreadable()
        if now >= held.expires:
            raise Unauthenticated(
                f"Incorrect API key provided: it expired on {held.on}. Ask for a new one.",
                code="expired_api_key",
            )
        return held

    def find(self, presented: str, now: float) -> Principal:
        """Whose key it is, wherever it is used from.

        Raises ``Unauthenticated``: code ``expired_api_key`` for a known key that has expired, else
        ``invalid_api_key``; and ``AuthUnavailable`` where files that may hold it cannot be read.
        """
        held = self.held(digest_of(presented), now)
        if held is None:
            raise self.refusal(presented)
        return held.principal

    def refusal(self, presented: str) -> GatewayError:
        """Why a key that is not held is refused."""
        return _unreadable() if self._withdrawn.unread else unknown_key(presented)


def _unreadable() -> AuthUnavailable:
    return AuthUnavailable(
        "Keys cannot be checked at the moment: the gateway cannot read its files. Try again later; its log tells "
        "the operator more.",
        retry_after=_LOOK_AGAIN,
    )


def _held(key: Key, tenants: Mapping[str, Tenant]) -> ApiKey:
    principal = Principal(
        key_id=key.id,
        tenant=key.tenant,
        models=key.models,
        tier=key.tier or tier_of(key.tenant, tenants),
        quotas=key.quotas,
        budget=key.budget,
    )
    networks = tuple(map(ip_network, key.allow_ips))
    return ApiKey(bytes.fromhex(key.sha256), principal, _midnight(key.expires), key.expires, networks)


def _midnight(day: date | None) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() if day else float("inf")
