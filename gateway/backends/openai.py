"""Any server that speaks OpenAI's API, the bundled engine among them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import httpx
import orjson

from gateway.backends import upstream_errors
from gateway.backends.clock import Clock
from gateway.backends.reading import Body, Events, Reading
from gateway.errors import Upstream, UpstreamFailed, UpstreamTimeout
from gateway.policy.schema import Target, Timeouts
from gateway.types import Call, Chunks
from gateway.wire import openai_chat, openai_completions
from gateway.wire.answer import Dialect

PROBE = Timeouts.model_validate({"connect": "2s", "first_token": "6s", "total": "6s"})

MAX_ERROR = 64 * 2**10
"""Bytes of an error's body that are read; no honest one is longer."""


class OpenAIBackend:
    """Forwards calls to ``base_url`` and reads what comes back, streamed or whole, as chunks.

    ``probe_url`` answers a GET with 200 when the server can serve.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str,
        probe_url: str,
        transport: httpx.AsyncBaseTransport,
        api_key: str | None = None,
    ) -> None:
        self.name = name
        base_url = base_url.rstrip("/")
        self._urls = {
            path: httpx.URL(base_url + path) for path in (openai_chat.PATH, openai_completions.PATH)
        }
        self._probe_url = httpx.URL(probe_url)
        self._transport = transport
        self._headers = {"accept-encoding": "identity", "user-agent": "tollgate"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._outage = upstream_errors.Outage()

    async def stream(self, call: Call, target: Target) -> Chunks:
        dialect = cast("Dialect", openai_completions if call.request.messages is None else openai_chat)
        clock = Clock(call.timeouts, at_once=not call.request.stream)
        request = httpx.Request(
            "POST",
            self._urls[dialect.PATH],
            headers={**self._headers, "content-type": "application/json", **call.headers},
            content=orjson.dumps(dialect.write_request(call.request, target.model)),
            extensions={"timeout": {"connect": clock.limits.connect}},
        )
        response = await self._send(request, clock)
        try:
            streamed = response.headers.get("content-type", "").lower().startswith("text/event-stream")
            reading: Reading = Events(self.name, dialect, call) if streamed else Body(self.name, dialect)
            async with aclosing(self._parts(response, clock)) as parts:
                async for part in parts:
                    if reading.done:
                        continue
                    for chunk in reading.feed(part):
                        clock.progress()
                        yield chunk
                    if reading.done:
                        clock.ended()
            for chunk in reading.finish():
                yield chunk
        finally:
            # Closing an answer that is not at its end tells the server to stop working on it.
            await response.aclose()

    async def probe(self) -> None:
        clock = Clock(PROBE)
        request = httpx.Request(
            "GET",
            self._probe_url,
            headers=self._headers,
            extensions={"timeout": {"connect": PROBE.connect}},
        )
        response = await self._send(request, clock)
        try:
            async for _ in self._parts(response, clock):
                pass
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _send(self, request: httpx.Request, clock: Clock) -> httpx.Response:
        """The answer to ``request``, not yet read; any status but 200 is raised as the error it means."""
        try:
            async with clock:
                response = await self._transport.handle_async_request(request)
        except httpx.TransportError as error:
            raise upstream_errors.from_transport(self.name, error, self._outage) from error
        except TimeoutError:
            raise self._late(clock) from None
        if response.status_code == 200:
            self._outage.over()
            return response
        body = b""
        try:
            async with aclosing(self._parts(response, clock)) as parts:
                async for part in parts:
                    body += part
                    if len(body) > MAX_ERROR:
                        break
        except Upstream:
            pass  # The status alone says what matters.
        finally:
            await response.aclose()
        raise upstream_errors.from_response(
            self.name, response.status_code, response.headers, body, self._outage
        )

    async def _parts(self, response: httpx.Response, clock: Clock) -> AsyncGenerator[bytes, None]:
        body = aiter(cast("httpx.AsyncByteStream", response.stream))
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
                    f"Backend '{self.name}' broke off in the middle of its answer.", code="upstream_cut"
                ) from error
        except TimeoutError:
            if not clock.is_over:
                raise self._late(clock) from None

    def _late(self, clock: Clock) -> UpstreamTimeout:
        return UpstreamTimeout(f"Backend '{self.name}' {clock.verdict()}.")
