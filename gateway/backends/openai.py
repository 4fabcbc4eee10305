"""Any server that speaks OpenAI's API, the bundled engine among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import orjson

from gateway.backends import extras, fitting, known_fields
from gateway.backends.answer_decoder import AnswerDecoder
from gateway.backends.api_forwarder import ApiForwarder, Locate
from gateway.backends.credentials.credentials import Credentials
from gateway.backends.endpoint import Endpoint
from gateway.backends.engine_thinking import for_engine
from gateway.backends.exchange import Exchange
from gateway.backends.openai_decoder import OpenAIBodyDecoder, OpenAIStreamDecoder
from gateway.backends.openai_errors import Outage
from gateway.backends.stream_collector import StreamCollector
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.backends.upstream_request import UpstreamRequest
from gateway.backends.vectors_decoder import VectorsDecoder
from gateway.errors import ENGINE_SOON, BadRequest, Rejected
from gateway.policy.schema import Target, Timeouts
from gateway.prefix_sharing import alias
from gateway.types import Call, ChatRequest, Chunk, Chunks, Json, Sink
from gateway.wire.dialect import Dialect
from gateway.wire.openai.dialect import CHAT, COMPLETIONS, EMBEDDINGS
from gateway.wire.openai.presets.preset import Preset

OBJECTIVE, FAIRNESS = "x-gateway-inference-objective", "x-gateway-inference-fairness-id"
MOST_REFITTED = 4
"""Times that a request is sent again without what its server refused."""


OnHeaders = Callable[[Mapping[str, str]], None]


class _Sent(NamedTuple):
    """What stays the same where a request is sent again with fewer fields."""

    call: Call
    target: Target
    dialect: Dialect
    answers: Dialect
    headers: dict[str, str]
    timeouts: Timeouts
    on_headers: OnHeaders | None
    may_misfit: bool


class OpenAIBackend:
    """Forwards calls to ``base_url`` and reads what comes back, streamed or whole, as chunks.

    ``probe_url`` answers a GET with 200 when the server can serve. With ``hints`` the server is the bundled engine,
    which takes a call's priority and the like. Without ``continues`` it is not asked to go on from a last message
    by fields that it may not know; without ``streams`` not for a stream that the caller does not want. ``endpoints``
    is for a server with a path for each model: from a dialect's path and the model. ``key_header`` holds the bare
    ``api_key`` in place of ``authorization``. ``strict`` refuses parameters that the API is not known to take.
    ``preset`` is the provider's own form of the API, ``apis`` tells where it has others. ``salt`` gives a call's
    ``cache_salt``, in the place of the caller's own. ``transport`` replaces the gateway's own connections.
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
        streams: bool = True,
        endpoints: Callable[[str, str], Endpoint] | None = None,
        key_header: str | None = None,
        cap: str | None = None,
        preset: Preset | None = None,
        credentials: Credentials | None = None,
        strict: bool = False,
        apis: Locate | None = None,
        salt: Callable[[Call], str] | None = None,
    ) -> None:
        self.name = name
        base_url = base_url.rstrip("/")
        self._endpoints = {
            dialect.path: Endpoint("POST", base_url + dialect.path)
            for dialect in (CHAT, COMPLETIONS, EMBEDDINGS)
        }
        self._endpoint_of = endpoints
        self._health = Endpoint("GET", probe_url)
        # The bundled engine is started again at once, and asked all the time how it is.
        outage = Outage(ENGINE_SOON) if hints else Outage()
        self._exchange = Exchange(
            name, transport, api_key=api_key, base_url=base_url, outage=outage, credentials=credentials
        )
        self._cap = cap or (preset.cap if preset is not None else cap_name(base_url))
        self._preset = preset
        self._answers: dict[Dialect, Dialect] = {
            dialect: dialect if preset is None else preset.dialect(dialect) for dialect in (CHAT, COMPLETIONS)
        }
        """Each dialect as this server answers in it."""
        self._answers[EMBEDDINGS] = EMBEDDINGS
        self._is_openais = is_openais(base_url)
        self._salt = salt
        self._rewrites = preset is not None or self._is_openais or salt is not None
        self._hints = hints
        self._strict = strict
        self._continues = continues
        self._collecting = StreamCollector(name, enabled=streams)
        self._headers = {"accept-encoding": "identity", "user-agent": "tollgate"}
        if api_key:
            self._headers[key_header or "authorization"] = api_key if key_header else f"Bearer {api_key}"
        self._post_headers = {**self._headers, "content-type": "application/json"}
        # What is not text from a model has another form with each provider: it is asked as the caller asks.
        locate = apis or (lambda api, model: None)
        self._apis = ApiForwarder(name, self._exchange, locate, self._headers, strict=strict)

    def stream(self, call: Call, target: Target) -> Chunks:
        """Raises ``BadRequest`` at once for what a budget cannot hold (``extras``)."""
        sent, asked = self._prepared(call, target)
        if sent.timeouts.bounds_silence and self._collecting.applies(call, asked, target.model):
            return self._collecting.ask(asked, target.model, partial(self._ask, sent))
        return self._ask(sent, asked, call.sink)

    async def whole(self, call: Call, target: Target) -> Sequence[Chunk]:
        sent, asked = self._prepared(call, target)
        if sent.timeouts.bounds_silence and self._collecting.applies(call, asked, target.model):
            async with aclosing(
                self._collecting.ask(asked, target.model, partial(self._ask, sent))
            ) as collected:
                return [chunk async for chunk in collected]
        return await self._exchange.whole_answer(self._asked(sent, asked, None, 0))

    def _prepared(self, call: Call, target: Target) -> tuple[_Sent, ChatRequest]:
        dialect = _dialect(call.request)
        if call.reply_headers:
            fitting.clear_reports(call)
        headers, timeouts = {**self._post_headers, **call.headers}, call.timeouts
        if self._hints:
            # The engine fits requests to its context itself, and knows better how.
            headers.update(call.hints)
            if not call.clips:
                headers[fitting.OVER_CONTEXT] = "refuse"
            asked, may_misfit = fitting.capped(call), False
            if asked.native is not None:
                asked = for_engine(asked)
            on_headers: OnHeaders | None = partial(fitting.report_changes, call)
        else:
            asked = fitting.fitted(call, fitting.CAPS[0] if dialect is COMPLETIONS else self._cap)
            if self._strict:
                known_fields.refuse_unknown(self.name, asked.params, known_fields.OPENAI)
            if call.allowance is not None:
                extras.check(call, asked, target)
            may_misfit = bool(asked.params) and not asked.params.keys().isdisjoint(
                _REFITTED | call.optional_params if call.optional_params else _REFITTED
            )
            on_headers = None
        if asked.continues and not self._continues:
            asked = replace(asked, continues=False)
        sent = _Sent(call, target, dialect, self._answers[dialect], headers, timeouts, on_headers, may_misfit)
        return sent, asked

    def pass_on(self, call: Call, target: Target) -> Chunks:
        return self._apis.answer(call, target)

    def _ask(self, sent: _Sent, request: ChatRequest, sink: Sink | None = None, *, refits: int = 0) -> Chunks:
        return self._exchange.ask(
            self._asked(sent, request, sink, refits), at_once=not request.stream, sink=sink
        )

    def _asked(self, sent: _Sent, request: ChatRequest, sink: Sink | None, refits: int) -> UpstreamRequest:
        call = sent.call
        return UpstreamRequest(
            self._endpoint(sent),
            sent.headers,
            UpstreamTimeouts(sent.timeouts, at_once=not request.stream, deadline=call.deadline),
            self._written(sent, request),
            partial(self._decoder, sent),
            call.principal.tenant,
            sent.on_headers,
            call.leaves,
            partial(self._refit, sent, request, sink, refits) if sent.may_misfit else None,
        )

    def _endpoint(self, sent: _Sent) -> Endpoint:
        path = sent.dialect.path
        return (
            self._endpoints[path] if self._endpoint_of is None else self._endpoint_of(path, sent.target.model)
        )

    def _written(self, sent: _Sent, request: ChatRequest) -> bytes:
        body = sent.dialect.write_request(request, sent.target.model)
        if self._rewrites:
            body = self._body(sent.call, body)
        return orjson.dumps(body)

    def _refit(
        self, sent: _Sent, request: ChatRequest, sink: Sink | None, refits: int, error: Rejected
    ) -> Chunks | None:
        """The answer to as much of ``request`` as the server takes."""
        fewer = fitting.suited(sent.call, request, error) if refits < MOST_REFITTED else None
        return self._ask(sent, fewer, sink, refits=refits + 1) if fewer is not None else None

    def _decoder(self, sent: _Sent, streamed: bool) -> AnswerDecoder:
        kind = (
            OpenAIStreamDecoder
            if streamed
            else VectorsDecoder
            if sent.dialect is EMBEDDINGS
            else OpenAIBodyDecoder
        )
        return kind(self.name, sent.answers, sent.call)

    def _body(self, call: Call, body: dict[str, Json]) -> dict[str, Json]:
        """As the provider takes it. Raises ``BadRequest`` for what it does not."""
        if self._salt is not None and "input" not in body:
            body.pop("cache_salt", None)
            if salt := self._salt(call):
                body["cache_salt"] = salt
        if self._preset is None:
            if self._is_openais:
                _refuse_fetched(body.get("messages") or ())
            return body
        sent, ignored = self._preset.body(body, call.optional_params)
        if ignored:
            if self._strict:
                raise known_fields.refused(self.name, ignored[0])
            fitting.report_ignored(call, ignored)
        return sent

    async def probe(self) -> None:
        await self._exchange.prove(self._health, self._headers)

    async def aclose(self) -> None:
        await self._exchange.aclose()


_REFITTED = fitting.HARMLESS.union(fitting.CAPS)


class InferencePoolBackend(OpenAIBackend):
    """A gateway of Kubernetes before an InferencePool, whose endpoint picker is told whose a request for a text is: its
    tier as the objective, and the tenant, by an alias, as who gets a fair share.

    https://gateway-api-inference-extension.sigs.k8s.io/
    """

    def _prepared(self, call: Call, target: Target) -> tuple[_Sent, ChatRequest]:
        sent, asked = super()._prepared(call, target)
        sent.headers[OBJECTIVE] = call.principal.tier
        sent.headers[FAIRNESS] = alias(call.principal.tenant)
        return sent, asked


def cap_name(base_url: str) -> str:
    """The field for a cap on a conversation's answer: OpenAI's own reasoning models know the new one only
    (https://platform.openai.com/docs/api-reference/chat/create), many other servers the old one.
    """
    return fitting.CAPS[is_openais(base_url)]


def is_openais(base_url: str) -> bool:
    """Whether OpenAI, or Azure for it, answers there, whose API is known to the last field."""
    host = urlsplit(base_url).hostname or ""
    return host == "api.openai.com" or host.endswith((".openai.azure.com", ".api.openai.com"))


def _refuse_fetched(messages: Sequence[Mapping[str, Json]]) -> None:
    """OpenAI's chat completions fetch pictures by their URL, but no files."""
    for i, message in enumerate(messages):
        content = message.get("content")
        for j, part in enumerate(content if isinstance(content, list) else ()):
            match part:
                case {"type": "file", "file": {"file_data": str(url)}} if url.startswith(_FETCHED):
                    where = f"messages[{i}].content[{j}].file.file_data"
                    raise BadRequest(
                        f"'{where}' is an address, and this model's provider fetches no files. Send the content as a "
                        "data URL, or ask another model.",
                        param=where,
                        code="unsupported_parameter",
                    )


_FETCHED = ("https://", "http://")


def _dialect(request: ChatRequest) -> Dialect:
    if request.messages is not None:
        return CHAT
    return EMBEDDINGS if request.embeds else COMPLETIONS


class PrioritisedBackend(OpenAIBackend):
    """A server that heeds a priority in a request's body, as vLLM (lower ones first) and SGLang (higher ones first) do
    where they are started for it. It is sent the priority of the caller's tier, and not what he says of his own.

    https://docs.vllm.ai/en/stable/serving/openai_compatible_server.html
    https://docs.sglang.io/advanced_features/server_arguments.html
    """

    def __init__(self, *given: Any, lower_first: bool, **named: Any) -> None:
        super().__init__(*given, **named)
        self._sign = -1 if lower_first else 1

    def _written(self, sent: _Sent, request: ChatRequest) -> bytes:
        call = sent.call
        tiers = call.policy.tier(call.principal.tier).priority
        # A line of a batch comes behind all tiers.
        params = {**request.params, "priority": self._sign * (tiers if call.line is None else -1)}
        return super()._written(sent, replace(request, params=params))
