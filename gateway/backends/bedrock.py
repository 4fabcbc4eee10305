"""Amazon Bedrock's models, by its Converse API
(https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html)."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from urllib.parse import quote

import httpx
import orjson

from gateway.backends import bedrock_errors, fitting, translating
from gateway.backends.answer_decoder import AnswerDecoder
from gateway.backends.bedrock_decoder import BedrockBodyDecoder, BedrockStreamDecoder
from gateway.backends.credentials.credentials import Credentials
from gateway.backends.endpoint import Endpoint
from gateway.backends.exchange import Exchange
from gateway.backends.json_object_filter import JsonObjectFilter
from gateway.backends.stream_collector import StreamCollector
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.backends.upstream_request import UpstreamRequest
from gateway.policy.schema import Target
from gateway.types import Call, ChatRequest, Chunks
from gateway.wire.anthropic.thinking import with_thinking
from gateway.wire.bedrock.request_to_body import FIELDS, HOTTEST, is_too_hot, write_request


class BedrockBackend:
    """Translates calls for ``base_url``, which ends where ``/model`` follows, and its answers into chunks.

    With ``credentials`` each request is signed; an ``api_key`` of Bedrock's is sent as it is. ``strict`` refuses
    parameters that would be left out.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str,
        transport: httpx.AsyncBaseTransport | None = None,
        api_key: str | None = None,
        credentials: Credentials | None = None,
        streams: bool = True,
        strict: bool = False,
    ) -> None:
        self.name = name
        self._root = base_url.rstrip("/")
        self._endpoints: dict[tuple[str, bool], Endpoint] = {}
        self._strict = strict
        self._collecting = StreamCollector(name, enabled=streams)
        self._exchange = Exchange(
            name,
            transport,
            bedrock_errors.from_response,
            api_key=api_key,
            base_url=base_url,
            credentials=credentials,
        )
        self._headers = {"accept-encoding": "identity", "user-agent": "tollgate"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    def stream(self, call: Call, target: Target) -> Chunks:
        """Raises ``BadRequest``, too, for what this provider has no equivalent of, or a budget cannot hold."""
        asked = translating.prepared(
            self.name, call, target, FIELDS, api="Amazon Bedrock's Converse API", strict=self._strict
        )
        if is_too_hot(asked):
            fitting.report_temperature(call, HOTTEST)
        if "anthropic." in target.model:
            asked = with_thinking(asked)
        answer = partial(self._answer, call, target.model)
        if self._collecting.applies(call, asked, target.model):
            return self._collecting.ask(asked, target.model, answer)
        return answer(asked)

    async def _answer(self, call: Call, model: str, asked: ChatRequest) -> Chunks:
        prompted = (asked.params.get("response_format") or {}).get("type") == "json_object"
        wanted = JsonObjectFilter(self.name) if prompted else None
        outage = self._exchange.outage

        def decoder_of(streamed: bool) -> AnswerDecoder:
            if asked.stream:
                return BedrockStreamDecoder(self.name, call, outage)
            return BedrockBodyDecoder(self.name, call)

        chunks = self._exchange.ask(
            UpstreamRequest(
                self._endpoint(model, stream=asked.stream),
                {**self._headers, "content-type": "application/json", **call.headers},
                UpstreamTimeouts(call.timeouts, at_once=not asked.stream, deadline=call.deadline),
                orjson.dumps(write_request(asked, model)),
                decoder_of=decoder_of,
                owner=call.principal.tenant,
                on_send=call.leaves,
            ),
            at_once=not asked.stream,
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                for ready in wanted.feed(chunk) if wanted is not None else (chunk,):
                    yield ready

    def _endpoint(self, model: str, *, stream: bool) -> Endpoint:
        """A model's id may be an ARN, with signs that mean something in a path."""
        known = self._endpoints.get((model, stream))
        if known is None:
            method = "converse-stream" if stream else "converse"
            known = Endpoint("POST", f"{self._root}/model/{quote(model, safe='')}/{method}")
            self._endpoints[model, stream] = known
        return known

    async def probe(self) -> None:
        """Prove that there are credentials: this API has nothing to ask for that costs nothing."""
        await self._exchange.authorize(Endpoint("POST", f"{self._root}/model"))

    async def aclose(self) -> None:
        await self._exchange.aclose()
