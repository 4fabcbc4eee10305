"""Passing on: requests to a provider's other APIs, sent as their callers wrote them but for the model's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import partial
from urllib.parse import urljoin, urlsplit

import orjson

from gateway.apis import Api
from gateway.backends import extras, known_fields
from gateway.backends.api_decoder import ApiDecoder
from gateway.backends.endpoint import Endpoint, Upload
from gateway.backends.exchange import Exchange
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.backends.upstream_request import UpstreamRequest
from gateway.errors import BadRequest, GatewayError, Rejected
from gateway.policy.schema import Target
from gateway.types import Call, ChatRequest, Chunks
from gateway.wire.apis.table import APIS

Locate = Callable[[Api, str], Endpoint | None]
"""Where an API of a model is; None where the server has none such."""
_NO_SUCH_PATH = (404, 405, 501)
_UNEXPLAINED = (None, "404", "405", "not_found", "upstream_refused", "upstream_error")
_ROOTED: Mapping[Api, str] = {"tokenize": "/tokenize", "detokenize": "/detokenize"}
"""What vLLM and the bundled engine have beside ``/v1``
(https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html)."""
_BELOW: Mapping[Api, str] = {
    name: api.path.removeprefix("/") for name, api in APIS.items() if name not in _ROOTED
}
OF_ENGINE: Mapping[Api, str] = {**_ROOTED, "rerank": "v1/rerank", "score": "v1/score"}
"""Relative to its root. An engine has those of its model, and refuses the others by name."""
OF_OPENAI: Mapping[Api, str] = {
    name: path for name, path in _BELOW.items() if name not in ("rerank", "score")
}
OF_ANY: Mapping[Api, str] = {**_BELOW, **_ROOTED}
"""Of a server with OpenAI's API of which no more is known: it says itself what it has not."""


def located(base_url: str, paths: Mapping[Api, str]) -> Locate:
    """``paths`` are relative to ``base_url``; those that begin with a slash, to its host."""
    base = base_url.rstrip("/") + "/"
    known = {api: Endpoint("POST", urljoin(base, path)) for api, path in paths.items()}
    return lambda api, model: known.get(api)


def paths_of(base_url: str) -> Mapping[Api, str]:
    host = urlsplit(base_url).hostname or ""
    return OF_OPENAI if host == "openai.com" or host.endswith(".openai.com") else OF_ANY


_AS_IT_COMES = frozenset({"speech"})
"""APIs whose answers begin long before they end, though nobody asked for a stream."""


class ApiForwarder:
    """One backend's."""

    def __init__(
        self,
        name: str,
        exchange: Exchange,
        locate: Locate,
        headers: Mapping[str, str],
        *,
        strict: bool = False,
    ) -> None:
        """``headers`` are sent with each request. ``strict`` refuses fields that an API is not known to take."""
        self._name = name
        self._exchange = exchange
        self._locate = locate
        self._headers = headers
        self._strict = strict

    def answer(self, call: Call, target: Target) -> Chunks:
        """Raises ``BadRequest`` where the server has no such API, or a budget cannot hold what is asked of it."""
        request = call.request
        api = request.api
        if api is None:
            raise ValueError("a request that generates text")
        endpoint = self._locate(api, target.model)
        if endpoint is None:
            raise BadRequest(
                f"The model '{call.model}' is served by backend '{self._name}', whose provider has no "
                f"'{APIS[api].path}'. Ask for a model of another backend that has it.",
                param="model",
                code="unsupported_parameter",
            )
        if self._strict:
            given = (name.removesuffix("[]") for name in request.params)
            known_fields.refuse_unknown(self._name, given, APIS[api].known)
        extras.check_passed_on(call, request, target, APIS[api].known)
        body, content_type = _written(request, target.model)
        headers: dict[str, str] = {}
        streams = request.stream or api in _AS_IT_COMES
        chunks = self._exchange.ask(
            UpstreamRequest(
                endpoint,
                {**self._headers, **call.headers, "content-type": content_type},
                UpstreamTimeouts(call.timeouts, at_once=not streams, deadline=call.deadline),
                body,
                decoder_of=lambda events: ApiDecoder(self._name, call, headers, events=events),
                owner=call.principal.tenant,
                on_headers=lambda given: headers.update(given),
                on_send=call.leaves,
            ),
            at_once=False,
        )
        return self._explained(chunks, call.model, APIS[api].path)

    async def _explained(self, chunks: Chunks, model: str, path: str) -> Chunks:
        """A server that knows no such path does not say so in words that help its caller's caller."""
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        except GatewayError as error:
            if error.upstream_status not in _NO_SUCH_PATH or error.code not in _UNEXPLAINED:
                raise
            said = f" ({error.message})" if isinstance(error, Rejected) else ""
            raise BadRequest(
                f"The model '{model}' is served by backend '{self._name}', which answers '{path}' with HTTP status "
                f"{error.upstream_status}{said}: it has no such API, or not for this model. Ask for another model.",
                param="model",
                code="unsupported_parameter",
            ) from error


def _written(request: ChatRequest, model: str) -> tuple[bytes | Upload, str]:
    """The body to send, and its content type."""
    api = APIS[request.api or "speech"]
    form = request.form
    if form is None:
        return orjson.dumps(api.body(request, model), default=dict), "application/json"
    texts = {name: value if isinstance(value, list) else [value] for name, value in request.params.items()}
    if request.prompt:
        texts[api.text] = [request.prompt]
    texts["model"] = [model]
    return Upload(form.size(texts), partial(form.parts, texts)), form.content_type
