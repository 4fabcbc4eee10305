"""Google's Gemini models, by the Gemini API (https://ai.google.dev/api/generate-content) or by Vertex AI
(https://cloud.google.com/vertex-ai/generative-ai/docs/model-reference/inference)."""

from __future__ import annotations

import re
from functools import partial
from urllib.parse import quote

import httpx
import orjson

from gateway.backends import extras, gemini_errors, known_fields, translating
from gateway.backends.answer_decoder import AnswerDecoder
from gateway.backends.credentials.credentials import Credentials
from gateway.backends.endpoint import Endpoint
from gateway.backends.exchange import Exchange
from gateway.backends.gemini_decoder import GeminiBodyDecoder, GeminiStreamDecoder
from gateway.backends.stream_collector import StreamCollector
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.backends.upstream_request import UpstreamRequest
from gateway.errors import UpstreamFailed
from gateway.policy.schema import Target
from gateway.types import Call, ChatRequest, Chunks, Json
from gateway.wire.anthropic.thinking import with_thinking
from gateway.wire.gemini.body_to_request import DIALECT
from gateway.wire.gemini.request_to_body import FIELDS, write_request

_THINKS = re.compile(r"(?:.*/)?gemini-(?:2\.5|[3-9]|\d\d)")
"""Models that take a ``thinkingConfig``; others refuse it."""
_WHOLE, _STREAM = "generateContent", "streamGenerateContent?alt=sse"


class GeminiBackend:
    """Translates calls for the API at ``base_url``, and its answers into chunks.

    ``models`` is the path below which models lie: ``/v1beta`` at the Gemini API, at Vertex AI that of a project and
    location; ``publisher`` the part of the path before a bare model's name. ``credentials`` take the place of
    ``api_key`` at Vertex AI. ``strict`` refuses parameters that would be left out.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str,
        models: str = "/v1beta",
        publisher: str = "models",
        transport: httpx.AsyncBaseTransport | None = None,
        api_key: str | None = None,
        credentials: Credentials | None = None,
        streams: bool = True,
        strict: bool = False,
    ) -> None:
        self.name = name
        self._root = base_url.rstrip("/") + models
        self._publisher = publisher
        self._probe = Endpoint("GET", f"{self._root}/models?pageSize=1")
        self._endpoints: dict[tuple[str, str], Endpoint] = {}
        self._strict = strict
        self._collecting = StreamCollector(name, enabled=streams)
        self._credentials = credentials
        self._exchange = Exchange(
            name,
            transport,
            gemini_errors.from_response,
            api_key=api_key,
            base_url=base_url,
            credentials=credentials,
        )
        self._headers = {"accept-encoding": "identity", "user-agent": "tollgate"}
        if api_key:
            self._headers["x-goog-api-key"] = api_key

    def stream(self, call: Call, target: Target) -> Chunks:
        """Raises ``BadRequest``, too, for what this provider has no equivalent of, or a budget cannot hold."""
        asked = translating.prepared(
            self.name, call, target, FIELDS, api="Google's Gemini API", strict=self._strict
        )
        if asked.native is not None and asked.speaks(DIALECT):
            if self._strict:
                known_fields.refuse_unknown(self.name, asked.native.body, known_fields.GEMINI)
            extras.check_google(call, asked.native.body, target)
        if _THINKS.match(target.model):
            asked = with_thinking(asked)
        answer = partial(self._answer, call, target.model)
        if self._collecting.applies(call, asked, target.model):
            return self._collecting.ask(asked, target.model, answer)
        return answer(asked)

    def _answer(self, call: Call, model: str, asked: ChatRequest) -> Chunks:
        outage = self._exchange.outage

        def decoder_of(streamed: bool) -> AnswerDecoder:
            if streamed:
                return GeminiStreamDecoder(self.name, call, outage)
            return GeminiBodyDecoder(self.name, call)

        return self._exchange.ask(
            UpstreamRequest(
                self._endpoint(model, _STREAM if asked.stream else _WHOLE),
                {**self._headers, "content-type": "application/json", **call.headers},
                UpstreamTimeouts(call.timeouts, at_once=not asked.stream, deadline=call.deadline),
                orjson.dumps(write_request(asked, model)),
                decoder_of=decoder_of,
                owner=call.principal.tenant,
                on_send=call.leaves,
            ),
            at_once=not asked.stream,
        )

    def _endpoint(self, model: str, method: str) -> Endpoint:
        known = self._endpoints.get((model, method))
        if known is None:
            path = (
                quote(model, safe="/-._~@")
                if "/" in model
                else f"{self._publisher}/{quote(model, safe='-._~@')}"
            )
            known = Endpoint("POST", f"{self._root}/{path}:{method}")
            self._endpoints[model, method] = known
        return known

    async def count_tokens(self, call: Call, target: Target) -> dict[str, Json]:
        """The provider's own count of the prompt's tokens; ``native`` is its answer, for callers of this dialect."""
        body = write_request(call.request, target.model)
        whole = {"model": f"models/{target.model}", **body} if self._credentials is None else body
        asked = {"generateContentRequest": whole} if self._credentials is None else whole
        clock = UpstreamTimeouts(call.timeouts, at_once=True, deadline=call.deadline)
        answer = await self._exchange.whole(
            self._endpoint(target.model, "countTokens"),
            {**self._headers, "content-type": "application/json", **call.headers},
            clock,
            orjson.dumps(asked),
        )
        try:
            count = orjson.loads(answer or b"")
            if type(count["totalTokens"]) is int and count["totalTokens"] >= 0:
                native = {"native": count} if call.request.speaks(DIALECT) else {}
                return {"input_tokens": count["totalTokens"], **native}
        except (ValueError, KeyError, TypeError):
            pass
        raise UpstreamFailed(f"Backend '{self.name}' answered with something that is no count of tokens.")

    async def probe(self) -> None:
        """Ask for the list of models, which costs nothing and needs a good key. Vertex AI has no such list for all who
        may ask its models: there a token that is given is proof enough."""
        if self._credentials is None:
            await self._exchange.prove(self._probe, self._headers)
        else:
            await self._exchange.authorize(self._probe)

    async def aclose(self) -> None:
        await self._exchange.aclose()
