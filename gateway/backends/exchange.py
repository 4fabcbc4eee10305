"""One request to a model's server and its answer, within time limits, with every failure as the gateway's own error."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

import httpx

from gateway.backends import upstream_errors
from gateway.backends.client import Answer, Client, Endpoint
from gateway.backends.clock import Clock
from gateway.backends.upstream_errors import Outage
from gateway.errors import GatewayError, Upstream, UpstreamFailed, UpstreamTimeout

MAX_ERROR = 64 * 2**10
"""Bytes of an error's body that are read; no honest one is longer."""

ErrorReader = Callable[[str, int, Mapping[str, str], bytes, Outage], GatewayError]
"""From the backend's name, the status, headers and body of an answer other than 200."""


class Exchange:
    """Sends a backend's requests. ``read_error`` knows in what words its server complains."""

    def __init__(
        self,
        backend: str,
        transport: httpx.AsyncBaseTransport | None = None,
        read_error: ErrorReader = upstream_errors.from_response,
    ) -> None:
        self.backend = backend
        self.outage = Outage()
        self._client = Client(transport=transport)
        self._read_error = read_error

    async def send(
        self, endpoint: Endpoint, headers: Mapping[str, str], clock: Clock, body: bytes = b""
    ) -> Answer:
        """The answer, not yet read, for the caller to close; any status but 200 is raised."""
        try:
            async with clock:
                answer = await self._client.send(endpoint, headers, body, connect=clock.limits.connect)
        except httpx.TransportError as error:
            raise upstream_errors.from_transport(self.backend, error, self.outage) from error
        except TimeoutError:
            raise self._late(clock) from None
        if answer.status == 200:
            self.outage.over()
            return answer
        said = b""
        try:
            async with aclosing(self.parts(answer, clock)) as parts:
                async for part in parts:
                    said += part
                    if len(said) > MAX_ERROR:
                        break
        except Upstream:
            pass  # The status alone says what matters.
        finally:
            await answer.aclose()
        raise self._read_error(self.backend, answer.status, answer.headers, said, self.outage)

    async def parts(self, answer: Answer, clock: Clock) -> AsyncGenerator[bytes, None]:
        """The answer's bytes as they come. Raises ``UpstreamFailed`` and ``UpstreamTimeout``."""
        body = aiter(answer)
        try:
            while True:
                async with clock:
                    part = await anext(body, None)
                if part is None:
                    return
                yield part
        except httpx.TransportError as error:
            if not clock.is_over:
                raise UpstreamFailed(
                    f"Backend '{self.backend}' broke off in the middle of its answer.", code="upstream_cut"
                ) from error
        except TimeoutError:
            if not clock.is_over:
                raise self._late(clock) from None

    async def aclose(self) -> None:
        await self._client.aclose()

    def _late(self, clock: Clock) -> UpstreamTimeout:
        return UpstreamTimeout(f"Backend '{self.backend}' {clock.verdict()}.")
