"""Anthropic's Messages API (https://platform.claude.com/docs/en/api/messages)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import aclosing

import httpx
import orjson

from gateway.backends import anthropic_errors
from gateway.backends.anthropic_reading import Body, Events
from gateway.backends.client import Endpoint
from gateway.backends.clock import Clock
from gateway.backends.exchange import Exchange
from gateway.errors import GatewayError
from gateway.policy.schema import Target, Timeouts
from gateway.types import Call, Chunk, Chunks
from gateway.wire.anthropic import request_writer

VERSION = "2023-06-01"
"""Not the newest: 2026-10-21 refuses ``temperature``, ``top_p`` and ``top_k``, which callers send."""
PROBE = Timeouts.model_validate({"connect": "2s", "first_token": "6s", "total": "6s"})


class AnthropicBackend:
    """Translates calls for ``base_url``, which ends where ``/v1/messages`` follows, and its answers into chunks.

    ``max_tokens`` is the cap on answers for which the caller set none.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str,
        transport: httpx.AsyncBaseTransport | None = None,
        api_key: str | None = None,
        max_tokens: int,
    ) -> None:
        self.name = name
        base_url = base_url.rstrip("/")
        self._messages = Endpoint("POST", base_url + request_writer.PATH)
        self._models = Endpoint("GET", base_url + "/v1/models")
        self._max_tokens = max_tokens
        self._exchange = Exchange(name, transport, anthropic_errors.from_response)
        self._headers = {
            "accept-encoding": "identity",
            "user-agent": "tollgate",
            "anthropic-version": VERSION,
        }
        if api_key:
            self._headers["x-api-key"] = api_key

    async def stream(self, call: Call, target: Target) -> Chunks:
        """Raises ``BadRequest``, too, for what this provider has no equivalent of."""
        body = request_writer.write_request(call.request, target.model, max_tokens=self._max_tokens)
        clock = Clock(call.timeouts, at_once=not call.request.stream, deadline=call.deadline)
        headers = {**self._headers, "content-type": "application/json", **call.headers}
        answer = await self._exchange.send(self._messages, headers, clock, orjson.dumps(body))
        try:
            streamed = answer.headers.get("content-type", "").lower().startswith("text/event-stream")
            outage = self._exchange.outage
            reading = Events(self.name, call, outage) if streamed else Body(self.name, outage)
            async with aclosing(self._exchange.parts(answer, clock)) as parts:
                async for part in parts:
                    if reading.done:
                        continue
                    for chunk in _together(reading.feed(part)):
                        clock.progress()
                        yield chunk
                    if reading.done:
                        clock.ended()
            for chunk in reading.finish():
                yield chunk
        finally:
            clock.close()
            # Closing an answer that is not at its end tells the server to stop working on it.
            await answer.aclose()

    async def probe(self) -> None:
        """Ask for the list of models, which costs nothing and needs a good key."""
        clock = Clock(PROBE)
        answer = await self._exchange.send(self._models, self._headers, clock)
        try:
            async with aclosing(self._exchange.parts(answer, clock)) as parts:
                async for _ in parts:
                    pass
        finally:
            await answer.aclose()

    async def aclose(self) -> None:
        await self._exchange.aclose()


def _together(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """All but the last say that another follows; an error on the way comes after the chunks before it."""
    held: Chunk | None = None
    try:
        for chunk in chunks:
            if held is not None:
                held.more = True
                yield held
            held = chunk
    except GatewayError:
        if held is not None:
            yield held
        raise
    if held is not None:
        yield held
