"""JSON Web Tokens (RFC 7519), verified as RFC 8725 advises, and their claims as a ``Principal``."""

from __future__ import annotations

import re
import time
from base64 import urlsafe_b64decode
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

import orjson
from pydantic import TypeAdapter, ValidationError

from gateway.errors import Unauthenticated
from gateway.identity.api_keys import tier_of
from gateway.identity.jwks_source import JwksSource
from gateway.policy.schema import DEFAULT_TIER, Jwt, Policy
from gateway.policy.schema.values import Name
from gateway.types import Principal

if TYPE_CHECKING:
    import jwt

MAX_TOKEN = 16 * 1024
MAX_MODELS = 256
CACHED = 10_000
CACHED_FOR = 60.0
"""Seconds, at most, for which a verified token is not verified again."""

_NAME: TypeAdapter[str] = TypeAdapter(Name)
_SEPARATORS = re.compile(r"[\s,]+")
_PLAIN = "/:@+|~"
TOKENS = "jwt:"
"""Begins the ids of those who came with a token."""


class _Known(NamedTuple):
    principal: Principal
    until: float


class Unverified(NamedTuple):
    """A token's unverified content: good for finding the key that verifies it, and for nothing else."""

    header: dict[str, Any]
    claims: dict[str, Any]


class TokenVerifier:
    """Tokens of the issuers that a policy trusts. ``sources`` holds each issuer's keys; ``clock`` is Unix time."""

    def __init__(
        self, policy: Policy, sources: Mapping[str, JwksSource], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._policy = policy
        self._issuers = {entry.issuer: entry for entry in policy.jwt}
        self._revoked = {entry.issuer: frozenset(entry.revoked) for entry in policy.jwt}
        self._sources = sources
        self._clock = clock
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        """By the token's SHA-256, the one used last at the end."""

    def forget(self) -> None:
        """Verify every token anew: the keys have changed."""
        self._known.clear()

    def known(self, digest: bytes) -> Principal | None:
        """The principal of the token with this SHA-256, if it was verified a short time ago."""
        known = self._known.get(digest)
        if known is None:
            return None
        if self._clock() >= known.until:
            del self._known[digest]
            return None
        self._known.move_to_end(digest)
        return known.principal

    async def verify(self, token: str, digest: bytes) -> Principal:
        """The principal of ``token``. Waits only where its key is not known yet, and then briefly.

        Raises ``Unauthenticated``, code ``expired_token`` or ``invalid_token``, and ``AuthUnavailable``.
        """
        import jwt  # with its issuers' keys (``gateway.identity.jwks``)

        unverified = read(token)
        issuer = unverified.claims.get("iss")
        entry = self._issuers.get(issuer) if isinstance(issuer, str) else None
        if entry is None:
            raise _invalid("its issuer is not one that this gateway trusts.")
        algorithm = next((name for name in entry.algorithms if name == unverified.header.get("alg")), None)
        if algorithm is None:
            raise _invalid(f"its algorithm is not accepted here; {', '.join(entry.algorithms)} can be used.")
        kid = unverified.header.get("kid")
        if kid is not None and not isinstance(kid, str):
            raise _invalid("its key id (kid) is not text.")
        source = self._sources[entry.issuer]
        key = await source.find(kid, algorithm)
        if key is None:
            named = "it names no key (kid), and" if kid is None else "its key (kid) is unknown:"
            raise _invalid(f"{named} the issuer's key set has no one key for it and {algorithm}.")
        try:
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                audience=entry.audience,
                issuer=entry.issuer,
                leeway=entry.leeway,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise _refused("This token has expired. Get a new one.", "expired_token") from None
        except jwt.PyJWTError as error:
            raise _invalid(_why(error)) from None
        except (ValueError, TypeError, OverflowError, RecursionError):
            raise _invalid("it is malformed.") from None
        principal = self._principal(entry, claims)
        self._cache(digest, principal, float(claims["exp"]))
        return principal

    def still(self, principal: Principal) -> Principal:
        """``principal``, whose token was verified before. Raises ``Unauthenticated`` where that would be refused."""
        subject = unquote(principal.key_id.removeprefix(TOKENS))
        if not self._issuers or any(subject in revoked for revoked in self._revoked.values()):
            raise _invalid("it has been revoked, or its issuer is not trusted any more.")
        return principal

    def _cache(self, digest: bytes, principal: Principal, expires: float) -> None:
        now = self._clock()
        until = min(expires, now + CACHED_FOR)
        if until <= now:
            return  # in the leeway
        self._known[digest] = _Known(principal, until)
        if len(self._known) > CACHED:
            self._known.popitem(last=False)

    def _principal(self, entry: Jwt, claims: dict[str, Any]) -> Principal:
        subject = claims["sub"]
        revoked = self._revoked[entry.issuer]
        if subject in revoked or claims.get("jti") in revoked:
            raise _invalid("it has been revoked.")
        # OpenID Connect Core 1.0, section 2: no more than 255 characters.
        if not 0 < len(subject) <= 255:
            raise _invalid("its subject (sub) should have 1 to 255 characters.")
        tenant = _name(claims, entry.tenant_claim)
        if tenant is None:
            raise _invalid(f"it has no claim '{entry.tenant_claim}', which names the tenant.")
        return Principal(
            key_id=TOKENS + quote(subject, safe=_PLAIN, errors="backslashreplace"),
            tenant=tenant,
            models=_models(entry, claims),
            tier=self._tier(entry, claims, tenant),
        )

    def _tier(self, entry: Jwt, claims: dict[str, Any], tenant: str) -> str:
        tier = _name(claims, entry.tier_claim)
        if tier is None:
            return tier_of(tenant, self._policy.tenants)
        if tier != DEFAULT_TIER and tier not in self._policy.tiers:
            raise _invalid(
                f"its claim '{entry.tier_claim}' names the tier '{tier}', which does not exist here."
            )
        return tier


def read(token: str) -> Unverified:
    """A token's header and claims, not verified. Raises ``Unauthenticated`` for anything but a signed token."""
    if len(token) > MAX_TOKEN:
        raise _invalid(f"it is longer than {MAX_TOKEN} bytes.")
    try:
        header, claims = (orjson.loads(_decoded(part)) for part in token.split(".")[:2])
    except ValueError:
        raise _invalid("it is malformed.") from None
    if not isinstance(header, dict) or not isinstance(claims, dict):
        raise _invalid("it is malformed.")
    if "crit" in header:
        raise _invalid("its header demands extensions (crit) that are not supported.")
    return Unverified(header, claims)


def _decoded(part: str) -> bytes:
    return urlsafe_b64decode(part.encode("ascii") + b"=" * (-len(part) % 4))


def _name(claims: dict[str, Any], claim: str) -> str | None:
    """A claim that holds a name as a policy may write it; None where it is missing."""
    value = claims.get(claim)
    if value is None:
        return None
    try:
        return _NAME.validate_python(value, strict=True)
    except ValidationError:
        raise _invalid(f"its claim '{claim}' should be a name: letters, digits and ._:/@+-") from None


def _models(entry: Jwt, claims: dict[str, Any]) -> tuple[str, ...]:
    value = claims.get(entry.models_claim)
    if value is None:
        return entry.models
    if isinstance(value, str):
        value = [word for word in _SEPARATORS.split(value) if word]
    if (
        not isinstance(value, list)
        or len(value) > MAX_MODELS
        or not all(isinstance(item, str) for item in value)
    ):
        raise _invalid(
            f"its claim '{entry.models_claim}' should be a list of up to {MAX_MODELS} names, or a text of them."
        )
    return tuple(value)


def _why(error: jwt.PyJWTError) -> str:
    import jwt

    match error:
        case jwt.MissingRequiredClaimError():
            return f"it has no claim '{error.claim}'."
        case jwt.InvalidAudienceError():
            return "it is for another audience (aud)."
        case jwt.ImmatureSignatureError():
            return "it is not valid yet (nbf, iat)."
        case jwt.InvalidSignatureError():
            return "its signature does not fit the issuer's key."
        case _:
            return "it is malformed."


def _invalid(why: str) -> Unauthenticated:
    return _refused(f"This token is refused: {why}", "invalid_token")


def _refused(message: str, code: str) -> Unauthenticated:
    error = Unauthenticated(message, code=code)
    # With "invalid_request_error" client libraries would blame the request's parameters.
    error.type = "authentication_error"
    return error
