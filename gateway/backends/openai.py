"""Any server that speaks OpenAI's API, the bundled engine among them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import cast

import httpx
import orjson

from gateway.backends import upstream_errors
from gateway.backends.client import Answer, Client, Endpoint
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

    ``probe_url`` answers a GET with 200 when the server can serve. With ``hints`` the server is the bundled engine,
    which is told a call's priority and the like. ``transport`` takes the place of the gateway's own connections.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str,
        probe_url: str,
        transport: httpx.AsyncBaseTransport | None = None,
        api_key: str | None = None,
        hints: bool = False,
    ) -> None:
        self.name = name
        base_url = base_url.rstrip("/")
        self._endpoints = {
            path: Endpoint("POST", base_url + path) for path in (openai_chat.PATH, openai_completions.PATH)
        }
        self._health = Endpoint("GET", probe_url)
        self._client = Client(transport=transport)
        self._hints = hints
        self._headers = {"accept-encoding": "identity", "user-agent": "tollgate"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._post_headers = {**self._headers, "content-type": "application/json"}
        self._outage = upstream_errors.Outage()

    async def stream(self, call: Call, target: Target) -> Chunks:
        dialect = cast("Dialect", openai_completions if call.request.messages is None else openai_chat)
        clock = Clock(call.timeouts, at_once=not call.request.stream)
        headers = {**self._post_headers, **call.headers}
        if self._hints:
            headers.update(call.hints)
        body = orjson.dumps(dialect.write_request(call.request, target.model))
        answer = await self._send(self._endpoints[dialect.PATH], headers, body, clock)
        try:
            streamed = answer.headers.get("content-type", "").lower().startswith("text/event-stream")
            reading: Reading = Events(self.name, dialect, call) if streamed else Body(self.name, dialect)
            async with aclosing(self._parts(answer, clock)) as parts:
                async for part in parts:
                    if reading.done:
                        continue
                    chunks = reading.feed(part)
                    if chunks:
                        clock.progress()
                        for chunk in chunks:
                            yield chunk
                    if reading.error is not None:
                        raise reading.error
                    if reading.done:
                        clock.ended()
            for chunk in reading.finish():
                yield chunk
        finally:
            # Closing an answer that is not at its end tells the server to stop working on it.
            await answer.aclose()

    async def probe(self) -> None:
        clock = Clock(PROBE)
        answer = await self._send(self._health, self._headers, b"", clock)
        try:
            async with aclosing(self._parts(answer, clock)) as parts:
                async for _ in parts:
                    pass
        finally:
            await answer.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _send(
        self, endpoint: Endpoint, headers: Mapping[str, str], body: bytes, clock: Clock
    ) -> Answer:
        """The answer, its body not yet read; any status but 200 is raised as the error it means."""
        try:
            async with clock:
                answer = await self._client.send(endpoint, headers, body, connect=clock.limits.connect)
        except httpx.TransportError as error:
            raise upstream_errors.from_transport(self.name, error, self._outage) from error
        except TimeoutError:
            raise self._late(clock) from None
        if answer.status == 200:
            self._outage.over()
            return answer
        told = b""
        try:
            async with aclosing(self._parts(answer, clock)) as parts:
                async for part in parts:
                    told += part
                    if len(told) > MAX_ERROR:
                        break
        except Upstream:
            pass  # The status alone says what matters.
        finally:
            await answer.aclose()
        raise upstream_errors.from_response(self.name, answer.status, answer.headers, told, self._outage)

    async def _parts(self, answer: Answer, clock: Clock) -> AsyncGenerator[bytes, None]:
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
                    f"Backend '{self.name}' broke off in the middle of its answer.", code="upstream_cut"
                ) from error
        except TimeoutError:
            if not clock.is_over:
                raise self._late(clock) from None

    def _late(self, clock: Clock) -> UpstreamTimeout:
        return UpstreamTimeout(f"Backend '{self.name}' {clock.verdict()}.")
