"""A bearer token that its issuer gives for a while: asked for when it is needed, and again before it runs out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

import httpx
import orjson

from gateway.backends.client import Client
from gateway.backends.endpoint import Endpoint
from gateway.errors import UpstreamFailed, UpstreamUnavailable

log = logging.getLogger(__name__)

EARLY = 300.0
"""Seconds before its end from which on a new token is asked for; half of its life at most."""
PAUSE = 30.0
"""Seconds between attempts while the old token is still good."""
USUAL_LIFE = 3600.0
"""Where the issuer does not say."""
MOST = 2**20
"""Bytes of an issuer's answer that are read."""


class TokenRequest(NamedTuple):
    """What the issuer is asked."""

    endpoint: Endpoint
    headers: Mapping[str, str]
    body: bytes = b""

    @classmethod
    def form(cls, url: str, fields: Mapping[str, str]) -> TokenRequest:
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        return cls(Endpoint("POST", url), headers, urlencode(fields).encode())


class BearerToken:
    """One backend's. ``asked`` makes the request for a token (RFC 6749, section 4.4); it may read files, and raises
    ``OSError`` or ``ValueError`` where what it needs is not there."""

    def __init__(self, backend: str, asked: Callable[[], TokenRequest]) -> None:
        self._backend = backend
        self._asked = asked
        self._client = Client()
        self._lock = asyncio.Lock()
        self._token = ""
        self._ends = self._renew = 0.0

    async def headers(self, endpoint: Endpoint, headers: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        if time.monotonic() >= self._renew:
            async with self._lock:
                if time.monotonic() >= self._renew:
                    await self._fetch()
        return {"authorization": f"Bearer {self._token}"}

    def refused(self) -> None:
        # Not on each refusal: a token that lacks a right is as good as the next one.
        if self._renew > (soon := time.monotonic() + PAUSE):
            self._renew = soon

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _fetch(self) -> None:
        began = time.monotonic()
        try:
            token, life = await self._ask()
        except (UpstreamFailed, UpstreamUnavailable) as error:
            if began >= self._ends:
                raise
            log.warning(
                "backend '%s': %s The old token is used while it lasts.", self._backend, error.message
            )
            self._renew = min(began + PAUSE, self._ends)
            return
        self._token, self._ends = token, began + life
        self._renew = self._ends - min(EARLY, life / 2)

    async def _ask(self) -> tuple[str, float]:
        """A token, and the seconds for which it is good."""
        try:
            request = await asyncio.to_thread(self._asked)
        except (OSError, ValueError) as error:
            log.error("backend '%s': its credentials cannot be read: %s", self._backend, error)
            raise self._failed("its credentials cannot be read") from error
        try:
            answer = await self._client.send(request.endpoint, request.headers, request.body)
            body = b""
            try:
                async for part in answer:
                    body += part
                    if len(body) > MOST:
                        break
            finally:
                await answer.aclose()
        except httpx.TransportError as error:
            raise self._unreachable() from error
        if answer.status >= 500 or answer.status == 429:
            raise self._unreachable()
        try:
            raw = orjson.loads(body)
            if answer.status == 200:
                return str(raw["access_token"]), _life(raw)
            why = f"{raw.get('error')}: {raw.get('error_description')}"
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError):
            why = "an answer that cannot be read"
        log.error("backend '%s': no token, HTTP status %s, %s", self._backend, answer.status, why[:1000])
        raise self._failed("the issuer of its tokens refused the gateway")

    def _failed(self, why: str) -> UpstreamFailed:
        return UpstreamFailed(
            f"Backend '{self._backend}' cannot be asked: {why}. The operator finds the reason in the log.",
            code="upstream_auth",
        )

    def _unreachable(self) -> UpstreamUnavailable:
        return UpstreamUnavailable(
            f"Backend '{self._backend}' cannot be asked: the issuer of its tokens gave no answer. Try again in "
            f"{PAUSE:.0f} s.",
            retry_after=PAUSE,
        )


def _life(raw: Any) -> float:
    """Seconds; issuers write numbers, or texts with numbers in them. Raises ``ValueError`` for what has ended."""
    given = raw.get("expires_in")
    life = (
        float(given)
        if given is not None
        else float(raw.get("expires_on") or time.time() + USUAL_LIFE) - time.time()
    )
    if not 0 < life < 10**7:
        raise ValueError("not the life of a token")
    return life
