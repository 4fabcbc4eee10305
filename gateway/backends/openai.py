"""Any server that speaks OpenAI's API, the bundled engine among them."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import cast

import httpx
import orjson

from gateway.backends.client import Endpoint
from gateway.backends.clock import Clock
from gateway.backends.exchange import Exchange
from gateway.backends.reading import Body, Dialect, Events, Reading
from gateway.errors import BadRequest
from gateway.policy.schema import Target
from gateway.types import Call, ChatRequest, Chunks
from gateway.wire import openai_chat, openai_completions, openai_embeddings

_CHAT, _COMPLETIONS, _EMBEDDINGS = (
    cast("Dialect", module) for module in (openai_chat, openai_completions, openai_embeddings)
)


class OpenAIBackend:
    """Forwards calls to ``base_url`` and reads what comes back, streamed or whole, as chunks.

    ``probe_url`` answers a GET with 200 when the server can serve. With ``hints`` the server is the bundled engine,
    which is told a call's priority and the like. Without ``continues`` it is not asked to go on from a last message
    in words that it may not know. ``transport`` takes the place of the gateway's own connections.
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
        continues: bool = True,
    ) -> None:
        self.name = name
        base_url = base_url.rstrip("/")
        self._endpoints = {
            dialect.PATH: Endpoint("POST", base_url + dialect.PATH)
            for dialect in (_CHAT, _COMPLETIONS, _EMBEDDINGS)
        }
        self._health = Endpoint("GET", probe_url)
        self._exchange = Exchange(name, transport)
        self._hints = hints
        self._continues = continues
        self._headers = {"accept-encoding": "identity", "user-agent": "tollgate"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._post_headers = {**self._headers, "content-type": "application/json"}

    def stream(self, call: Call, target: Target) -> Chunks:
        """Raises ``BadRequest`` at once for embeddings of the bundled engine, which has none."""
        dialect = _dialect(call.request)
        if self._hints and dialect is _EMBEDDINGS:
            raise BadRequest(
                f"Backend '{self.name}' is the bundled engine, which does not make embeddings. Ask for a model whose "
                "backend is an embedder, such as one of kind 'sidecar'.",
                param="model",
                code="unsupported_parameter",
            )
        clock = Clock(call.timeouts, at_once=not call.request.stream, deadline=call.deadline)
        headers = {**self._post_headers, **call.headers}
        if self._hints:
            headers.update(call.hints)
        asked = call.request
        if asked.continues and not self._continues:
            asked = replace(asked, continues=False)
        body = orjson.dumps(dialect.write_request(asked, target.model))

        def reading_of(streamed: bool) -> Reading:
            return Events(self.name, dialect, call) if streamed else Body(self.name, dialect)

        chunks = self._exchange.ask(
            self._endpoints[dialect.PATH],
            headers,
            clock,
            body,
            at_once=not call.request.stream,
            reading_of=reading_of,
        )
        return _in_turns(chunks) if dialect is _EMBEDDINGS else chunks

    async def probe(self) -> None:
        await self._exchange.prove(self._health, self._headers)

    async def aclose(self) -> None:
        await self._exchange.aclose()


def _dialect(request: ChatRequest) -> Dialect:
    if request.messages is not None:
        return _CHAT
    return _EMBEDDINGS if request.embeds else _COMPLETIONS


async def _in_turns(chunks: Chunks) -> Chunks:
    """Lets others run now and then: thousands of vectors may have come at once, and each has yet to be written."""
    number = 0
    async with aclosing(chunks):
        async for chunk in chunks:
            yield chunk
            number += 1
            if number % 16 == 0:
                await asyncio.sleep(0)
