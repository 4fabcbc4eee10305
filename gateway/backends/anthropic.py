"""Anthropic's Messages API (https://platform.claude.com/docs/en/api/messages)."""

from __future__ import annotations

from contextlib import aclosing

import httpx
import orjson

from gateway.backends import anthropic_errors
from gateway.backends.anthropic_reading import Body, Events
from gateway.backends.client import Endpoint
from gateway.backends.clock import Clock
from gateway.backends.exchange import Exchange
from gateway.backends.reading import Reading
from gateway.errors import BadRequest
from gateway.policy.schema import Target
from gateway.types import Call, Chunks
from gateway.wire.anthropic import request_writer
from gateway.wire.anthropic.request_reader import DIALECT

VERSION = "2023-06-01"
"""Where the caller names none. Not the newest: 2026-10-21 refuses ``temperature``, ``top_p`` and ``top_k``, which
callers send."""
BETA = "beta=true"
"""What Anthropic's SDK appends to the path of requests for beta features."""


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
        self._beta = Endpoint("POST", f"{base_url}{request_writer.PATH}?{BETA}")
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
        if call.request.embeds:
            raise BadRequest(
                f"Backend '{self.name}' is Anthropic's API, which has no embeddings. Ask for a model whose backend is "
                "an embedder.",
                param="model",
                code="unsupported_parameter",
            )
        body = request_writer.write_request(call.request, target.model, max_tokens=self._max_tokens)
        clock = Clock(call.timeouts, at_once=not call.request.stream, deadline=call.deadline)
        headers = self._headers_of(call)
        outage = self._exchange.outage

        def reading_of(streamed: bool) -> Reading:
            return Events(self.name, call, outage) if streamed else Body(self.name, call, outage)

        chunks = self._exchange.ask(
            self._beta if call.query == BETA else self._messages,
            headers,
            clock,
            orjson.dumps(body),
            at_once=not call.request.stream,
            reading_of=reading_of,
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    def _headers_of(self, call: Call) -> dict[str, str]:
        """A caller who speaks this dialect says which version of it; betas are for whoever asks for them."""
        told = call.provider_headers
        if "anthropic-version" in told and not call.request.speaks(DIALECT):
            told = {name: value for name, value in told.items() if name != "anthropic-version"}
        return {**self._headers, "content-type": "application/json", **call.headers, **told}

    async def probe(self) -> None:
        """Ask for the list of models, which costs nothing and needs a good key."""
        await self._exchange.prove(self._models, self._headers)

    async def aclose(self) -> None:
        await self._exchange.aclose()
