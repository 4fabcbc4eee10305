"""An issuer's public keys: a JSON Web Key Set (RFC 7517), of which only what verifies our algorithms is kept."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import orjson

from gateway.policy.schema import Algorithm

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

MAX_BYTES = 1024 * 1024
MAX_KEYS = 1000
MIN_RSA_BITS = 2048
"""RFC 7518, section 3.3."""

PublicKey: TypeAlias = "RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey"

_PUBLIC_PARTS = ("kty", "crv", "n", "e", "x", "y")

log = logging.getLogger(__name__)


class JwksError(Exception):
    """The document is no set of usable keys; the message says why."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    kid: str | None
    algorithm: Algorithm
    """The one that goes with the key's type. A token never chooses another (RFC 8725, section 3.1)."""
    key: PublicKey


class KeySet:
    def __init__(self, keys: Iterable[VerifyingKey]) -> None:
        self._by_id: dict[tuple[str | None, Algorithm], list[VerifyingKey]] = {}
        self._by_algorithm: dict[Algorithm, list[VerifyingKey]] = {}
        for key in keys:
            self._by_id.setdefault((key.kid, key.algorithm), []).append(key)
            self._by_algorithm.setdefault(key.algorithm, []).append(key)

    def find(self, kid: str | None, algorithm: Algorithm) -> VerifyingKey | None:
        """The one key that a token names; None where there is none, or where several could be meant."""
        if kid is None:
            found = self._by_algorithm.get(algorithm, [])
        else:
            found = self._by_id.get((kid, algorithm)) or self._by_id.get((None, algorithm), [])
        return found[0] if len(found) == 1 else None


def parse(document: bytes) -> KeySet:
    """Raises ``JwksError``. Keys of other kinds and for other uses are passed over."""
    if len(document) > MAX_BYTES:
        raise JwksError(f"is larger than {MAX_BYTES} bytes")
    try:
        content = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise JwksError(f"is not JSON: {error}") from None
    entries = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise JwksError('is no JSON Web Key Set: it has no list "keys"')
    keys = [key for entry in entries[:MAX_KEYS] if (key := _key(entry)) is not None]
    if not keys:
        raise JwksError(
            f"holds no key for RS256 ({MIN_RSA_BITS} bits or more), ES256 (P-256) or EdDSA (Ed25519)"
        )
    return KeySet(keys)


def _key(entry: Any) -> VerifyingKey | None:
    algorithm = _algorithm(entry) if isinstance(entry, dict) else None
    if algorithm is None or not _for_signatures(entry, algorithm):
        return None
    # Here and not above: a gateway without issuers does without them and their 60 modules.
    import jwt
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    # Without the private part, in case it was published too.
    public = {part: entry[part] for part in _PUBLIC_PARTS if part in entry}
    try:
        key = cast("PublicKey", jwt.PyJWK(public, algorithm).key)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("a key of a JWKS is passed over: %s", type(error).__name__)
        return None
    if isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        log.warning("an RSA key of %d bits in a JWKS is passed over: too short", key.key_size)
        return None
    kid = entry.get("kid")
    return VerifyingKey(kid if isinstance(kid, str) else None, algorithm, key)


def _algorithm(entry: dict[str, Any]) -> Algorithm | None:
    match entry.get("kty"), entry.get("crv"):
        case "RSA", _:
            return "RS256"
        case "EC", "P-256":
            return "ES256"
        case "OKP", "Ed25519":
            return "EdDSA"
        case _:
            return None


def _for_signatures(entry: dict[str, Any], algorithm: Algorithm) -> bool:
    operations = entry.get("key_ops")
    return (
        entry.get("use") in (None, "sig")
        and entry.get("alg") in (None, algorithm)
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
    )
