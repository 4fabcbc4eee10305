"""Posts to servers that are no model's, such as those that judge texts: over connections that are kept."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from gateway.backends.client import Client, UpstreamResponse
from gateway.backends.endpoint import Endpoint


class Poster:
    """For any number of URLs. Proxies and authorities are those of ``Client``."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """``transport`` takes the place of the network."""
        self._client = Client(transport=transport)
        self._endpoints: dict[str, Endpoint] = {}

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, connect: float
    ) -> UpstreamResponse:
        """The answer, its body still to be read. ``connect`` limits (seconds) the time a new connection takes; the
        rest is the caller's to limit.

        ``x-request-id`` among the headers should differ from request to request. A connection that its server closed
        meanwhile is no failure: the request is sent once more. Raises ``httpx.TransportError``.
        """
        endpoint = self._endpoints.get(url)
        if endpoint is None:
            if len(self._endpoints) >= 256:
                self._endpoints.clear()
            endpoint = self._endpoints[url] = Endpoint("POST", url)
        try:
            return await self._client.send(endpoint, headers, body, connect=connect)
        except (httpx.ReadError, httpx.RemoteProtocolError):
            return await self._client.send(endpoint, headers, body, connect=connect)

    async def aclose(self) -> None:
        await self._client.aclose()
