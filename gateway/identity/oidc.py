"""An OpenID provider, asked who somebody is: OpenID Connect's code flow with PKCE.

OpenID Connect Core 1.0 and Discovery 1.0, RFC 7636 (PKCE), RFC 9207 (``iss``). Signatures are PyJWT's to verify.
"""

from __future__ import annotations

import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import httpx
import orjson

from gateway.errors import AuthUnavailable, Unauthenticated
from gateway.identity.fetch import TIMEOUT, NotFetched, fetch
from gateway.identity.jwks import VerifyingKey
from gateway.identity.jwks_source import JwksSource, from_url
from gateway.identity.jwt import read
from gateway.identity.session_cookie import PendingSignIn
from gateway.policy.schema import Algorithm, Oidc

FRESH = 600.0
"""Seconds for which metadata and keys are used again; an unknown key id has the keys read anew before that."""
LEEWAY = 30.0
_LOCAL = ("127.0.0.1", "::1", "localhost")
_ALGORITHMS: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")


class SignInFailed(Exception):
    """``reason`` is one of a few, for the page; the message is for the log."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Person:
    subject: str
    name: str
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of an issuer, and since when."""

    metadata: Mapping[str, Any]
    read: float


class Provider:
    """``transport`` is the gateway's, and not closed here; ``clock`` is Unix time."""

    def __init__(self, transport: httpx.AsyncBaseTransport, clock: Callable[[], float] = time.time) -> None:
        self._transport = transport
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._keys: JwksSource | None = None
        self._keys_of: _Known | None = None

    async def aclose(self) -> None:
        if self._keys is not None:
            await self._keys.aclose()

    async def address(self, oidc: Oidc, pending: PendingSignIn) -> str:
        """Where to send a browser. Raises ``SignInFailed``."""
        known = await self._metadata(oidc)
        endpoint = _url(oidc, known.metadata, "authorization_endpoint")
        challenge = urlsafe_b64encode(sha256(pending.verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": oidc.client_id,
            "redirect_uri": oidc.redirect_uri,
            "scope": " ".join(oidc.scopes),
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked, quote_via=quote)}"

    async def person(self, oidc: Oidc, pending: PendingSignIn, answer: Mapping[str, str]) -> Person:
        """Who came back with ``answer``, the callback's query. Raises ``SignInFailed``."""
        if not compare_digest(answer.get("state", "").encode(), pending.state.encode()):
            raise SignInFailed("state", "the state is not that of the browser that was sent away")
        if answer.get("iss", oidc.issuer).rstrip("/") != oidc.issuer or pending.issuer != oidc.issuer:
            raise SignInFailed("state", "the answer is another issuer's")
        if "error" in answer or not answer.get("code"):
            raise SignInFailed("refused", f"the provider refused: {answer.get('error', 'no code')[:80]!r}")
        known = await self._metadata(oidc)
        token = await self._exchange(oidc, known, answer["code"], pending.verifier)
        claims = await self._claims(oidc, known, token, pending.nonce)
        roles = tuple(role for role in _roles(oidc, claims) if role in (*oidc.admins, *oidc.viewers))
        if oidc.role_of(roles) is None:
            raise SignInFailed(
                "role", f"none of the roles of {claims['sub'][:80]!r} is one that the policy names"
            )
        name = next(
            (str(claims[one]) for one in ("email", "preferred_username", "name") if claims.get(one)), ""
        )
        return Person(claims["sub"], (name or claims["sub"])[:100], roles[:20])

    async def _exchange(self, oidc: Oidc, known: _Known, code: str, verifier: str) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": oidc.redirect_uri,
            "client_id": oidc.client_id,
            "code_verifier": verifier,
        }
        headers = {"content-type": "application/x-www-form-urlencoded"}
        if oidc.client_secret is not None:
            secret = oidc.client_secret.get_secret_value()
            methods = known.metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
            if "client_secret_basic" in methods:
                pair = f"{quote(oidc.client_id, safe='')}:{quote(secret, safe='')}"
                headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
            else:
                form["client_secret"] = secret
        answer = await self._json(
            "POST", _url(oidc, known.metadata, "token_endpoint"), headers, urlencode(form).encode()
        )
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise SignInFailed("provider", "the provider's answer has no id_token")
        return token

    async def _claims(self, oidc: Oidc, known: _Known, token: str, nonce: str) -> dict[str, Any]:
        import jwt  # where somebody signs in (``gateway.identity.jwks``)

        try:
            header = read(token).header
            algorithm = next((one for one in _ALGORITHMS if one == header.get("alg")), None)
            kid = header.get("kid")
            if algorithm is None or not (kid is None or isinstance(kid, str)):
                raise SignInFailed("token", "the ID token is signed in a way that is not accepted")
            key = await self._key(oidc, known, kid, algorithm)
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                audience=oidc.client_id,
                issuer=known.metadata["issuer"],  # with its last slash, where it has one
                leeway=LEEWAY,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except (
            Unauthenticated,
            jwt.PyJWTError,
            ValueError,
            TypeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise SignInFailed("token", f"the ID token is not valid: {type(error).__name__}") from None
        audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        party = claims.get("azp", oidc.client_id if len(audiences) == 1 else None)
        if party != oidc.client_id:
            raise SignInFailed("token", "the ID token was given to another client")
        if not compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise SignInFailed("token", "the ID token is not for this sign-in: its nonce is another")
        if not isinstance(claims["sub"], str) or not 0 < len(claims["sub"]) <= 255:
            raise SignInFailed("token", "the ID token's subject is not a text of 1 to 255 characters")
        return dict(claims)

    async def _key(self, oidc: Oidc, known: _Known, kid: str | None, algorithm: Algorithm) -> VerifyingKey:
        """Keys are rotated: one that is not known has them read anew, and so has what is newly known of the issuer."""
        if self._keys is None or self._keys_of is not known:
            url = _url(oidc, known.metadata, "jwks_uri")
            before = self._keys
            self._keys_of = known
            self._keys = JwksSource(
                url, from_url(self._transport, url), every=float("inf"), clock=self._clock
            )
            if before is not None:
                await before.aclose()
        try:
            found = await self._keys.find(kid, algorithm, wait=TIMEOUT)
        except AuthUnavailable:
            raise SignInFailed("provider", "the provider's JWKS cannot be used") from None
        if found is None:
            raise SignInFailed("token", "the ID token's key is none of the provider's")
        return found

    async def _metadata(self, oidc: Oidc) -> _Known:
        known = self._known.get(oidc.issuer)
        if known is None or self._clock() - known.read >= FRESH:
            url = f"{oidc.issuer}/.well-known/openid-configuration"
            found = await self._json("GET", url, {}, b"")
            if str(found.get("issuer", "")).rstrip("/") != oidc.issuer:
                raise SignInFailed("provider", f"{url} is another issuer's")
            known = _Known(found, self._clock())
            self._known = {oidc.issuer: known}
        return known

    async def _json(self, method: str, url: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
        try:
            found = orjson.loads(await self._read(method, url, headers, body))
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise SignInFailed("provider", f"{url} does not answer with an object of JSON")
        return found

    async def _read(self, method: str, url: str, headers: dict[str, str], body: bytes) -> bytes:
        try:
            return await fetch(self._transport, url, method=method, headers=headers, body=body)
        except NotFetched as error:
            raise SignInFailed("provider", f"{url}: {error}") from None
        except (httpx.HTTPError, OSError, TimeoutError) as error:
            raise SignInFailed("provider", f"{url} cannot be read: {type(error).__name__}") from None


def _url(oidc: Oidc, metadata: Mapping[str, Any], name: str) -> str:
    """An endpoint of the provider's: over TLS, or on this machine where the issuer itself is.

    Else a provider could have the gateway send requests, with the client's secret, to what listens on it alone.
    """
    value = metadata.get(name)
    try:
        parts = urlsplit(value if isinstance(value, str) else "")
        local = parts.hostname in _LOCAL
    except ValueError:  # no address at all, such as http://[
        parts, local = urlsplit(""), False
    issuer_is_local = urlsplit(oidc.issuer).hostname in _LOCAL
    if not isinstance(value, str) or not (
        (parts.scheme == "https" or (parts.scheme == "http" and local)) and (issuer_is_local or not local)
    ):
        raise SignInFailed("provider", f"the provider's metadata has no usable {name}")
    return value


def _roles(oidc: Oidc, claims: Mapping[str, Any]) -> list[str]:
    """The roles that a token claims: at the claim of that very name, or else where its dots lead."""
    value: Any = claims.get(oidc.roles_claim)
    if value is None:
        value = claims
        for step in oidc.roles_claim.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        value = value.split()
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
