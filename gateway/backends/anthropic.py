"""Anthropic's Messages API (https://platform.claude.com/docs/en/api/messages)."""

from __future__ import annotations

import re
from contextlib import aclosing
from functools import partial

import httpx
import orjson

from gateway.backends import anthropic_errors, extras, fitting, known_fields
from gateway.backends.answer_decoder import AnswerDecoder
from gateway.backends.anthropic_decoder import AnthropicBodyDecoder, AnthropicStreamDecoder
from gateway.backends.endpoint import Endpoint
from gateway.backends.exchange import Exchange
from gateway.backends.json_object_filter import JsonObjectFilter
from gateway.backends.stream_collector import StreamCollector
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.backends.upstream_request import UpstreamRequest
from gateway.errors import BadRequest, UpstreamFailed
from gateway.policy.schema import Target
from gateway.types import Call, ChatRequest, Chunks, Json, Sink
from gateway.wire.anthropic import request_to_body
from gateway.wire.anthropic.body_to_request import DIALECT
from gateway.wire.anthropic.dialect import AnthropicDialect

VERSION = "2023-06-01"
"""Where the caller names none. Not the newest: 2026-10-21 refuses ``temperature``, ``top_p`` and ``top_k``, which
callers send."""
BETA = "beta=true"
"""What Anthropic's SDK appends to the path of requests for beta features."""

_FORM = re.compile(r"output_config|output_format|structured output|schema", re.IGNORECASE)
"""What a complaint about the form of an answer speaks of."""


_COUNTED = frozenset({"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"})
"""What of a request its count is asked with (https://platform.claude.com/docs/en/api/messages-count-tokens)."""


class AnthropicBackend:
    """Translates calls for ``base_url``, which ends where ``/v1/messages`` follows, and its answers into chunks.

    ``max_tokens`` is the cap on answers for which the caller set none. ``strict`` refuses parameters that the API is
    not known to take, rather than pass them on or leave them out.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str,
        transport: httpx.AsyncBaseTransport | None = None,
        api_key: str | None = None,
        max_tokens: int,
        streams: bool = True,
        strict: bool = False,
    ) -> None:
        self.name = name
        base_url = base_url.rstrip("/")
        self._messages = Endpoint("POST", base_url + request_to_body.PATH)
        self._beta = Endpoint("POST", f"{base_url}{request_to_body.PATH}?{BETA}")
        self._count = Endpoint("POST", f"{base_url}{request_to_body.PATH}/count_tokens")
        self._models = Endpoint("GET", base_url + "/v1/models")
        self._dialect = AnthropicDialect(max_tokens=max_tokens)
        self._default_cap = partial(request_to_body.cap_of, otherwise=max_tokens)
        self._collecting = StreamCollector(name, enabled=streams)
        self._exchange = Exchange(
            name, transport, anthropic_errors.from_response, api_key=api_key, base_url=base_url
        )
        self._strict = strict
        self._headers = {
            "accept-encoding": "identity",
            "user-agent": "tollgate",
            "anthropic-version": VERSION,
        }
        if api_key:
            self._headers["x-api-key"] = api_key

    def stream(self, call: Call, target: Target) -> Chunks:
        """Raises ``BadRequest``, too, for what this provider has no equivalent of, or a budget cannot hold."""
        if call.request.embeds:
            raise BadRequest(
                f"Backend '{self.name}' is Anthropic's API, which has no embeddings. Ask for a model whose backend is "
                "an embedder.",
                param="model",
                code="unsupported_parameter",
            )
        fitting.clear_reports(call)
        # What the gateway asks for itself is unknown here.
        asked = fitting.without(
            fitting.fitted(call, fitting.CAPS[1], self._default_cap), call.optional_params
        )
        if asked.native is not None and asked.speaks(DIALECT):
            if self._strict:
                known_fields.refuse_unknown(self.name, asked.native.body, known_fields.ANTHROPIC)
            extras.check_native(call, asked.native.body, target)

        def answer(request: ChatRequest, sink: Sink | None = None) -> Chunks:
            return self._formed(call, request, target, sink)

        if self._collecting.applies(call, asked, target.model):
            return self._collecting.ask(asked, target.model, answer)
        return answer(asked, call.sink)

    async def _formed(self, call: Call, asked: ChatRequest, target: Target, sink: Sink | None) -> Chunks:
        """The answer, in the form that was asked for."""
        form = None if asked.speaks(DIALECT) else (asked.params.get("response_format") or {}).get("type")
        started = False
        try:
            async with aclosing(
                self._answer(call, asked, target, sink, prompted=form == "json_object")
            ) as chunks:
                async for chunk in chunks:
                    started = True
                    yield chunk
            return
        except BadRequest as error:
            if started or form != "json_schema" or not _FORM.search(f"{error.param} {error.message}"):
                raise
        # This model has no structured outputs, or not for such a schema.
        async with aclosing(self._answer(call, asked, target, None, prompted=True)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _answer(
        self, call: Call, asked: ChatRequest, target: Target, sink: Sink | None, *, prompted: bool
    ) -> Chunks:
        body = self._dialect.write_request(asked, target.model, prompted=prompted)
        if names := request_to_body.left_out(asked):
            if self._strict:
                raise known_fields.refused(self.name, names[0])
            fitting.report_ignored(call, names)
        if request_to_body.is_too_hot(asked):
            fitting.report_temperature(call, request_to_body.HOTTEST)
        wanted = JsonObjectFilter(self.name) if prompted else None
        clock = UpstreamTimeouts(call.timeouts, at_once=not asked.stream, deadline=call.deadline)
        headers = self._headers_of(call)
        outage = self._exchange.outage

        def decoder_of(streamed: bool) -> AnswerDecoder:
            kind = AnthropicStreamDecoder if streamed else AnthropicBodyDecoder
            return kind(self.name, call, outage)

        chunks = self._exchange.ask(
            UpstreamRequest(
                self._beta if call.query == BETA else self._messages,
                headers,
                clock,
                orjson.dumps(body),
                decoder_of=decoder_of,
                owner=call.principal.tenant,
                on_send=call.leaves,
            ),
            at_once=not asked.stream,
            sink=sink if wanted is None else None,
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                for ready in wanted.feed(chunk) if wanted is not None else (chunk,):
                    yield ready

    async def count_tokens(self, call: Call, target: Target) -> dict[str, Json]:
        """The provider's own count of the prompt's tokens."""
        native, speaks = call.request.native, call.request.speaks(DIALECT)
        if native is not None and speaks:
            body = {**native.body, "model": target.model}
        else:
            whole = self._dialect.write_request(call.request, target.model)
            body = {name: value for name, value in whole.items() if name in _COUNTED}
        clock = UpstreamTimeouts(call.timeouts, at_once=True, deadline=call.deadline)
        answer = await self._exchange.whole(self._count, self._headers_of(call), clock, orjson.dumps(body))
        try:
            count = orjson.loads(answer or b"")
            if type(count["input_tokens"]) is int and count["input_tokens"] >= 0:
                return dict(count)
        except (ValueError, KeyError, TypeError):
            pass
        raise UpstreamFailed(f"Backend '{self.name}' answered with something that is no count of tokens.")

    def _headers_of(self, call: Call) -> dict[str, str]:
        """The version is the caller's only where the caller speaks this dialect; betas are always."""
        headers = call.provider_headers
        if "anthropic-version" in headers and not call.request.speaks(DIALECT):
            headers = {name: value for name, value in headers.items() if name != "anthropic-version"}
        return {**self._headers, "content-type": "application/json", **call.headers, **headers}

    async def probe(self) -> None:
        """Ask for the list of models, which costs nothing and needs a good key."""
        await self._exchange.prove(self._models, self._headers)

    async def aclose(self) -> None:
        await self._exchange.aclose()
