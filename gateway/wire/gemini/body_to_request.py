"""A request to Google's Gemini API as one of ours, which has OpenAI's shape, with the original body beside it.

The path names the model and whether the answer is a stream. Parts, tools and parameters that OpenAI's shape lacks are
accepted: a model of Google's gets them unchanged. ``Native.beyond`` names the first that another model could not do
without.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from gateway.errors import BadRequest
from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.types import ChatRequest, Json, Native
from gateway.wire import json_body
from gateway.wire.gemini import generation_config, tools
from gateway.wire.gemini.contents_to_messages import Content, MessagesBuilder, invalid
from gateway.wire.gemini.generation_config import GenerationConfig
from gateway.wire.gemini.names import camel
from gateway.wire.gemini.tools import Tool, ToolConfig
from gateway.wire.openai.chat import Lenient

DIALECT = "gemini"

_BOUNDS = {"contents": "messages", "tools": "tools"}
IGNORED = frozenset({"labels", "model", "safetySettings", "serviceTier", "store"})
"""About the account, or about filters that other providers set by themselves: other models are asked without."""
_BEYOND = {"cachedContent": "a cache that Google keeps"}


class CountedBody(Lenient):
    """What makes a prompt."""

    contents: Annotated[json_body.Items[Content], Field(min_length=1)]
    systemInstruction: Content | None = None
    tools: json_body.Items[Tool] | None = None
    toolConfig: ToolConfig | None = None
    generationConfig: GenerationConfig | None = None


class CountTokensBody(Lenient):
    """What ``:countTokens`` takes: a conversation, or a whole request."""

    contents: json_body.Items[Content] | None = None
    generateContentRequest: CountedBody | None = None


class GenerateContentBody(CountedBody):
    safetySettings: json_body.Items[dict[str, Any]] | None = None
    cachedContent: str | None = None
    labels: dict[str, Any] | None = None


def read_request(
    data: bytes, limits: RequestLimits = USUAL, *, model: str, stream: bool = False
) -> ChatRequest:
    """Raises ``BadRequest``."""
    body = _bounded(_body(data, limits), limits)
    request = _read(body, model=model, stream=stream)
    if request.n > limits.answers:
        raise BadRequest(
            f"The request asks for {request.n} answers at once, and this gateway takes {limits.answers}. Send "
            "it in parts, with a smaller 'candidateCount'.",
            param="generationConfig.candidateCount",
            code="too_many_answers",
        )
    return request


def read_count_request(data: bytes, limits: RequestLimits = USUAL, *, model: str) -> ChatRequest:
    """A request whose tokens are only to be counted. Raises ``BadRequest``."""
    body = _body(data, limits)
    whole = body.get("generateContentRequest")
    return _read(_bounded(whole if isinstance(whole, dict) else body, limits), model=model, stream=False)


def _body(data: bytes, limits: RequestLimits) -> dict[str, Json]:
    body: dict[str, Json] = camel(json_body.read_json(data, limits, bounds=_BOUNDS, conversation=""))
    return body


def _bounded(body: dict[str, Json], limits: RequestLimits) -> dict[str, Json]:
    """Raises ``BadRequest`` for longer lists than the policy takes."""
    contents = body.get("contents")
    parts = sum(
        len(content["parts"])
        for content in (contents if isinstance(contents, list) else ())
        if isinstance(content, dict) and isinstance(content.get("parts"), list)
    )
    functions = sum(
        len(tool["functionDeclarations"])
        for tool in (body.get("tools") or ())
        if isinstance(tool, dict) and isinstance(tool.get("functionDeclarations"), list)
    )
    config = body.get("generationConfig")
    stops = config.get("stopSequences") if isinstance(config, dict) else None
    for name, count, most in (
        ("contents", len(contents) if isinstance(contents, list) else 0, limits.messages),
        ("contents[].parts", parts, limits.parts),
        ("tools[].functionDeclarations", functions, limits.tools),
        ("generationConfig.stopSequences", len(stops) if isinstance(stops, list) else 0, limits.stop),
    ):
        if count > most:
            raise json_body.too_long(name, count, most)
    return body


def _read(raw: Mapping[str, Json], *, model: str, stream: bool) -> ChatRequest:
    body = dict(raw)
    known = json_body.check(GenerateContentBody, body)
    conversation = MessagesBuilder()
    conversation.system(body.get("systemInstruction"))
    for i, content in enumerate(body["contents"]):
        conversation.content(content, f"contents[{i}]")
    messages = conversation.messages
    if not messages or messages[-1].get("tool_calls"):
        raise invalid("contents", "should end with a turn that the model can answer")
    beyond = conversation.beyond
    params, more = generation_config.read(known.generationConfig, body.get("generationConfig") or {})
    beyond = beyond or more
    functions, more = tools.read(body.get("tools") or (), known.toolConfig)
    params |= functions
    beyond = beyond or more
    for name in body:
        if name not in GenerateContentBody.model_fields and name not in IGNORED:
            beyond = beyond or (name[:64], "a field that is not known here")
        elif name in _BEYOND:
            beyond = beyond or (name, _BEYOND[name])
    return ChatRequest(
        model=model,
        messages=tuple(messages),
        stream=stream,
        n=params.pop("n", 1),
        params=params,
        continues=messages[-1]["role"] == "assistant",
        native=Native(DIALECT, body, partial(_read, model=model, stream=stream), beyond),
    )
