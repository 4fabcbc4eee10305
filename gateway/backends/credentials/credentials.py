"""What a request must carry to be let in, made anew for each: a token that runs out, or a signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import httpx

from gateway.backends.client import Client, UpstreamResponse
from gateway.backends.endpoint import Endpoint, Upload


class Credentials(Protocol):
    async def headers(self, endpoint: Endpoint, headers: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        """Those to send beside ``headers``. Raises ``gateway.errors.GatewayError``, ``httpx.TransportError``."""
        ...

    def refused(self) -> None:
        """A server did not accept them, though they had not run out: the next request gets others."""
        ...

    async def aclose(self) -> None: ...


class AuthorizedClient(Client):
    """A client whose every request carries ``credentials``."""

    def __init__(
        self, credentials: Credentials, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        super().__init__(transport=transport)
        self._credentials = credentials

    async def send(
        self,
        endpoint: Endpoint,
        headers: Mapping[str, str],
        body: bytes | Upload = b"",
        *,
        connect: float | None = None,
        on_send: Callable[[], None] | None = None,
    ) -> UpstreamResponse:
        # Where bodies are signed nothing is uploaded: that is for Amazon's API alone.
        signed = body if isinstance(body, bytes) else b""
        own = await self._credentials.headers(endpoint, headers, signed)
        answer = await super().send(endpoint, {**headers, **own}, body, connect=connect, on_send=on_send)
        if answer.status in (401, 403):
            self._credentials.refused()
        return answer

    async def aclose(self) -> None:
        await super().aclose()
        await self._credentials.aclose()
