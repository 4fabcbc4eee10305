"""Authentication of requests under one policy generation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from starlette.types import Scope

from gateway.errors import Forbidden, Unauthenticated
from gateway.identity.api_keys import ApiKey, KeyRing, digest_of
from gateway.identity.client_address import ClientAddress, within
from gateway.identity.jwks_source import CHECK_FILE_EVERY, JwksSource, from_file, from_url
from gateway.identity.jwt import TOKENS, TokenVerifier
from gateway.policy.revoked_keys import RevokedKeys
from gateway.policy.schema import Jwt, Policy
from gateway.server.headers import RequestHeaders, by_name
from gateway.types import Principal


def key_ring(policy: Policy, dev_key_sha256: str | None, before: Authenticator | None = None) -> KeyRing:
    return KeyRing(
        policy.keys_in_force,
        tenants=policy.tenants,
        dev_key_sha256=None if policy.keys or policy.jwt else dev_key_sha256,
        before=before._keys if before is not None else None,
    )


class Authenticator:
    """API keys, and the tokens of the issuers that the policy trusts."""

    def __init__(
        self,
        policy: Policy,
        folder: Path,
        transport: httpx.AsyncBaseTransport,
        *,
        keys: KeyRing | None = None,
        dev_key_sha256: str | None = None,
        before: Authenticator | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``folder`` is where relative JWKS paths begin; ``transport`` fetches URLs, and stays the caller's to close.

        ``keys`` is what ``key_ring`` makes, which takes a while where there are many.

        ``before`` is the generation that this one replaces: its issuers' keys are used until they are read anew.
        With ``jwt`` entries an event loop must be running. ``clock`` is Unix time.
        """
        self._clock = clock
        self._keys = key_ring(policy, dev_key_sha256) if keys is None else keys
        self._addresses = ClientAddress(policy.trusted_proxies)
        known = {} if before is None else {source.location: source for source in before._sources.values()}
        self._sources: dict[str, JwksSource] = {}
        self._tokens = TokenVerifier(policy, self._sources, clock=clock)
        for entry in policy.jwt:
            self._sources[entry.issuer] = self._source(entry, folder, transport, known.get(entry.jwks))

    async def principal(self, scope: Scope, headers: RequestHeaders | None = None) -> Principal:
        """Who sent this request; ``headers`` are the scope's by name, where they are known. Waits for nothing but the
        keys of an issuer, and for those briefly.

        Raises ``Unauthenticated``; ``Forbidden``, code ``ip_not_allowed``, for a good key in the wrong place; and
        ``AuthUnavailable`` where an issuer's keys, or the policy's, cannot be read.
        """
        credential = presented(by_name(scope["headers"]) if headers is None else headers)
        digest = digest_of(credential)
        key = self._keys.lookup(digest, self._clock())
        if key is not None:
            if key.allow_ips:
                self._check_address(key, scope)
            return key.principal
        if self._sources and credential.count(".") == 2:
            return self._tokens.known(digest) or await self._tokens.verify(credential, digest)
        raise self._keys.refusal(credential)

    def holder(self, digest: bytes, scope: Scope) -> Principal:
        """Whose API key has this SHA-256, for who showed the key before. Raises as ``principal`` does."""
        key = self._keys.lookup(digest, self._clock())
        if key is None:
            raise self._keys.refusal("")
        if key.allow_ips:
            self._check_address(key, scope)
        return key.principal

    def still(self, principal: Principal) -> Principal:
        """Who ``principal``, as they were authenticated before, is now: what works on for hours asks again.

        An API key's by its id, wherever it was used from. A token is not at hand any more: what it claimed holds while
        its subject is not revoked and some issuer is trusted. Raises as ``principal`` does.
        """
        if principal.key_id.startswith(TOKENS):
            return self._tokens.still(principal)
        key = self._keys.lookup_id(principal.key_id, self._clock())
        if key is None:
            refusal = self._keys.refusal("")
            if isinstance(refusal, Unauthenticated):
                refusal = Unauthenticated(
                    f"The API key '{principal.key_id}', with which this was begun, was revoked. Begin anew with "
                    "another.",
                    code="invalid_api_key",
                )
            raise refusal
        if key.principal.tenant != principal.tenant:
            raise Unauthenticated("The API key belongs to another tenant now.", code="invalid_api_key")
        return key.principal

    def revoke(self, revoked: RevokedKeys) -> None:
        """Refuse these API keys from now on, and no others, although the policy has them."""
        self._keys.revoke(revoked)

    async def aclose(self) -> None:
        """Stop following the issuers' keys."""
        await asyncio.gather(*(source.aclose() for source in self._sources.values()))

    def _check_address(self, key: ApiKey, scope: Scope) -> None:
        address = self._addresses.of(scope)
        if address is None or not within(address, key.allow_ips):
            seen = "an unknown address" if address is None else str(address)
            raise Forbidden(
                f"This API key may not be used from {seen}. Ask for that address to be allowed.",
                code="ip_not_allowed",
            )

    def _source(
        self, entry: Jwt, folder: Path, transport: httpx.AsyncBaseTransport, before: JwksSource | None
    ) -> JwksSource:
        remote = urlsplit(entry.jwks).scheme in ("http", "https")
        return JwksSource(
            entry.jwks,
            from_url(transport, entry.jwks) if remote else from_file(folder / entry.jwks),
            every=entry.refresh if remote else CHECK_FILE_EVERY,
            stale_if_error=entry.stale_if_error,
            before=before,
            on_change=self._tokens.forget,
        )


_BARE = (b"x-api-key", b"api-key", b"x-goog-api-key")


def presented(headers: RequestHeaders) -> str:
    """From ``Authorization: Bearer …``, as OpenAI's clients send it, or ``x-api-key``, as Anthropic's do, or
    ``api-key``, as Azure's do, or ``x-goog-api-key``, as Google's do.

    Where several are there, the first of these counts. Raises ``Unauthenticated`` where none can be used.
    """
    authorization = headers.get(b"authorization")
    if authorization is not None:
        scheme, _, credential = authorization.strip().partition(b" ")
        if scheme.lower() == b"bearer" and (credential := credential.strip()):
            return str(credential, "latin-1")
    for name in _BARE:
        if credential := headers.get(name, b"").strip():
            return str(credential, "latin-1")
    if authorization is not None:
        raise Unauthenticated(
            "The Authorization header is not of the form 'Bearer YOUR_KEY'. Send your API key that way."
        )
    # OpenAI's words, as far as they go: clients know them.
    raise Unauthenticated(
        "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
        "(i.e. Authorization: Bearer YOUR_KEY), or in a header x-api-key, api-key or x-goog-api-key."
    )
