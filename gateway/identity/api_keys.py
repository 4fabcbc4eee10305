"""API keys: making them, and checking the one that a request presents."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Network, ip_network

from gateway.errors import AuthUnavailable, GatewayError, Unauthenticated
from gateway.policy.revoked_keys import RevokedKeys
from gateway.policy.schema import DEFAULT_TIER, Key, PreviousHash, Tenant
from gateway.types import Principal

PREFIX = "tg-"
DEVELOPMENT = Principal(key_id="dev", tenant="default", models=("*",), scopes=("inference", "admin"))
"""The caller that the development key authenticates."""
_RETRY_AFTER = 5.0
"""Seconds: an operator has to make the files readable first."""


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
    """The tier of a key that names none."""
    known = tenants.get(tenant)
    return (known.tier if known else None) or DEFAULT_TIER


def unknown_key(presented: str) -> Unauthenticated:
    """Begins as OpenAI's message does, which clients recognise, and shows the caller the ends of the key."""
    advice = "Check that it was copied whole, or ask for a new one."
    error = Unauthenticated(f"Incorrect API key provided. {advice}")
    error.public_message = f"Incorrect API key provided: {masked(presented)}. {advice}"
    return error


def masked(key: str) -> str:
    """Three characters of either end of a long key: enough to recognise it, too few to use it."""
    if len(key) < 16:
        return "***"
    shown = "".join(c if c.isascii() and c.isprintable() else "?" for c in key[:3] + key[-3:])
    return f"{shown[:3]}***{shown[3:]}"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An active key: its principal, its expiry, and the networks it may be used from."""

    principal: Principal
    key: Key | None = None
    """The policy's entry."""
    expires: float = float("inf")
    """Unix time."""
    expiry_date: date | None = None
    allow_ips: tuple[IPv4Network | IPv6Network, ...] = ()
    """Empty: from anywhere."""


class KeyRing:
    """The active keys.

    A presented key is hashed and looked up by its digest. The time of the lookup can reveal digests at most, from which
    no key can be computed; comparing the keys themselves would reveal those.
    """

    def __init__(
        self,
        keys: Iterable[Key],
        *,
        tenants: Mapping[str, Tenant] | None = None,
        dev_key_sha256: str | None = None,
        before: KeyRing | None = None,
    ) -> None:
        """The development key is valid only where a policy has no keys of its own. Keys that are unchanged since
        ``before`` are taken from there."""
        tenants = tenants or {}
        self._tenants = tenants
        known = before._active if before is not None and before._tenants == tenants else {}
        self._active: dict[str, ApiKey] = {}
        for key in keys:
            old = known.get(key.sha256)
            self._active[key.sha256] = old if old is not None and old.key is key else _active(key, tenants)
            if key.previous is not None:
                self._active.setdefault(key.previous.sha256, _previous(key, key.previous, tenants))
        if dev_key_sha256 and not self._active:
            principal = replace(DEVELOPMENT, tier=tier_of(DEVELOPMENT.tenant, tenants))
            self._active[dev_key_sha256] = ApiKey(principal)
        self._revoked = RevokedKeys()
        self._refused: frozenset[str] = frozenset()
        """Ids of ``_revoked``."""
        self._by_id: dict[str, ApiKey] | None = None

    def __len__(self) -> int:
        return len(self._active)

    def revoke(self, revoked: RevokedKeys) -> None:
        """Refuse these keys from now on, and no others."""
        self._revoked = revoked
        self._refused = revoked.gone | revoked.unverified

    def lookup(self, digest: bytes, now: float) -> ApiKey | None:
        """The key with this SHA-256, if it is valid at Unix time ``now``.

        Raises ``Unauthenticated``, code ``expired_api_key``, for one that has expired, and ``AuthUnavailable`` for one
        whose file cannot be read. The caller checks ``allow_ips``: the address of a request is known there only.
        """
        key = self._active.get(digest.hex())
        return None if key is None else self._valid(key, now)

    def lookup_id(self, key_id: str, now: float) -> ApiKey | None:
        """As ``lookup``, for who showed the key before and is known by its id."""
        if self._by_id is None:
            # Of a rotated key the newer one comes first.
            self._by_id = {key.principal.key_id: key for key in reversed(self._active.values())}
        key = self._by_id.get(key_id)
        return None if key is None else self._valid(key, now)

    def _valid(self, key: ApiKey, now: float) -> ApiKey | None:
        if self._refused and key.principal.key_id in self._refused:
            if key.principal.key_id in self._revoked.gone:
                return None
            raise _unreadable()
        if now >= key.expires:
            raise Unauthenticated(
                f"Incorrect API key provided: it expired on {key.expiry_date}. Ask for a new one.",
                code="expired_api_key",
            )
        return key

    def find(self, presented: str, now: float) -> Principal:
        """Whose key it is, whatever address it is used from.

        Raises ``Unauthenticated``: code ``expired_api_key`` for a known key that has expired, else
        ``invalid_api_key``; and ``AuthUnavailable`` where files that may hold it cannot be read.
        """
        key = self.lookup(digest_of(presented), now)
        if key is None:
            raise self.refusal(presented)
        return key.principal

    def refusal(self, presented: str) -> GatewayError:
        """The error for a key that ``lookup`` does not find."""
        return _unreadable() if self._revoked.unreadable_files else unknown_key(presented)


def _unreadable() -> AuthUnavailable:
    return AuthUnavailable(
        "Keys cannot be checked at the moment: the gateway cannot read its files. Try again later; its log has "
        "the operator more.",
        retry_after=_RETRY_AFTER,
    )


def _active(key: Key, tenants: Mapping[str, Tenant]) -> ApiKey:
    principal = Principal(
        key_id=key.id,
        tenant=key.tenant,
        models=key.models,
        tier=key.tier or tier_of(key.tenant, tenants),
        quotas=key.quotas,
        budget=key.budget,
        scopes=key.scopes,
        residency=key.residency,
    )
    networks = tuple(map(ip_network, key.allow_ips))
    return ApiKey(principal, key, _midnight(key.expires), key.expires, networks)


def _previous(key: Key, previous: PreviousHash, tenants: Mapping[str, Tenant]) -> ApiKey:
    """What ``key`` was before it was rotated: the same caller, for a while."""
    now = _active(key, tenants)
    ends = min(previous.until.timestamp(), now.expires)
    return replace(now, key=None, expires=ends, expiry_date=previous.until.date())


def _midnight(day: date | None) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() if day else float("inf")
