"""OpenAI's Chat Completions dialect, both ways (https://platform.openai.com/docs/api-reference/chat)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from gateway.errors import BadRequest
from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.types import ChatRequest, Chunk, Json
from gateway.wire import json_body
from gateway.wire.openai.envelope import AnswerFormat, Choice
from gateway.wire.openai.events_to_chunks import read_chunks

PATH = "/chat/completions"

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class Lenient(BaseModel):
    """Checks what it knows, strictly, and lets the rest through for the model's server to judge."""

    model_config = ConfigDict(extra="allow", strict=True)


class Part(Lenient):
    type: str
    text: str | None = None


class Message(Lenient):
    role: Role
    content: str | json_body.Items[Part] | None = None


class StreamOptions(Lenient):
    include_usage: bool | None = None


_STREAM_OPTIONS: list[JsonValue] = [
    {"properties": {"stream": {"const": True}}, "required": ["stream"]},
    {"properties": {"stream_options": {"type": "null"}}},
]
"""For the schema's documents: ``stream_options`` only where the answer is a stream."""


class Sampling(Lenient):
    """The parameters that both of OpenAI's text APIs share."""

    model_config = ConfigDict(json_schema_extra={"anyOf": _STREAM_OPTIONS})

    model: Annotated[str, Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    best_of: Annotated[int, Field(ge=0, le=128)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    stop: str | json_body.Items[str] | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    user: str | None = None

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _first_wrong_bias(cls, value: Any) -> Any:
        """As with lists, the first is enough."""
        if isinstance(value, dict):
            for token, bias in value.items():
                if type(bias) not in (int, float):
                    raise ValueError(f"the bias of token '{token[:40]}' should be a number")
        return value


class ChatBody(Sampling):
    messages: Annotated[json_body.Items[Message], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: json_body.Items[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


_OWN = frozenset({"model", "messages", "prompt", "stream", "n"})


def read_request(data: bytes, limits: RequestLimits = USUAL) -> ChatRequest:
    """Raises ``BadRequest``."""
    raw = json_body.read_json(data, limits)
    return request_from(raw, json_body.check(ChatBody, raw), limits, messages=tuple(raw["messages"]))


def request_from(
    raw: Mapping[str, Json],
    known: Sampling,
    limits: RequestLimits,
    *,
    messages: tuple[Mapping[str, Json], ...] | None = None,
    prompt: Json = None,
) -> ChatRequest:
    stream = bool(known.stream)
    if known.stream_options is not None and not stream:
        raise BadRequest(
            "'stream_options' is only allowed when 'stream' is true.",
            param="stream_options",
            code="invalid_value",
        )
    request = ChatRequest(
        model=known.model,
        messages=messages,
        prompt=prompt,
        stream=stream,
        include_usage=bool(known.stream_options and known.stream_options.include_usage),
        n=known.n or 1,
        params={name: value for name, value in raw.items() if name not in _OWN},
    )
    several = request.n > 1 or known.best_of is not None or prompt is not None
    if several and request.answers > limits.answers:
        by = "'best_of'" if (known.best_of or 0) > request.n else "'n'"
        raise BadRequest(
            f"The request asks for {request.answers} answers at once, and this gateway takes {limits.answers}. Send "
            f"it in parts: with fewer prompts, or a smaller {by}.",
            param="n" if messages is not None else "prompt",
            code="too_many_answers",
        )
    return request


def write_request(request: ChatRequest, model: str) -> dict[str, Json]:
    """The body to send upstream; usage is always asked for, as the gateway itself needs it.

    Raises ``BadRequest`` for what another dialect's caller wrote and this one cannot express.
    """
    if request.native is not None and request.native.beyond is not None:
        where, what = request.native.beyond
        raise BadRequest(
            f"'{where}' is {what}, which this model's server does not know. Leave it out, or ask a model of the "
            "provider whose it is.",
            param=where,
            code="unsupported_parameter",
        )
    sent: dict[str, Json] = {**request.params, "model": model, "stream": request.stream}
    if request.messages is not None:
        sent["messages"] = request.messages
    else:
        sent["prompt"] = request.prompt
    if request.continues and request.messages is not None:
        # As vLLM, SGLang and the bundled engine have it.
        sent["continue_final_message"] = True
        sent["add_generation_prompt"] = False
    if request.n != 1:
        sent["n"] = request.n
    if request.stream:
        sent["stream_options"] = {**(request.params.get("stream_options") or {}), "include_usage": True}
    return sent


def read_answer(raw: Mapping[str, Json]) -> list[Chunk]:
    """A whole answer, as a short stream: one chunk a choice, the usage on the last."""
    return read_chunks(raw, lambda choice: choice.get("message") or {})


def read_event(raw: Mapping[str, Json]) -> list[Chunk]:
    """One event of a stream."""
    return read_chunks(raw, lambda choice: choice.get("delta") or {})


def body_choice(index: int, choice: Choice) -> dict[str, Json]:
    """A choice of a whole answer."""
    fields = choice.delta or {}
    if None in fields.values():
        # Other servers write null, or nothing, where the published schema has fields that are always there or never
        # null.
        fields = {name: value for name, value in fields.items() if value is not None}
    message = {"role": "assistant", "content": None, "refusal": None, "annotations": [], **fields}
    for call in message.get("tool_calls") or ():
        call.pop("index", None)
    written = {
        "index": index,
        "message": message,
        "logprobs": _logprobs(choice.logprobs) if choice.logprobs else None,
        "finish_reason": choice.finish_reason or None,
    }
    if choice.stop is not None:
        written["stop_reason"] = choice.stop
    return {**written, **choice.choice} if choice.choice else written


def event_choice(chunk: Chunk) -> dict[str, Json]:
    """A choice of one event."""
    delta = chunk.delta or {}
    if delta.get("tool_calls"):
        numbered = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
        delta = {**delta, "tool_calls": numbered}
    return {
        "index": chunk.index,
        "delta": delta,
        "logprobs": _logprobs(chunk.logprobs),
        "finish_reason": chunk.finish_reason,
        **({} if chunk.stop is None else {"stop_reason": chunk.stop}),
        **(chunk.choice or {}),
    }


def _logprobs(logprobs: Mapping[str, Json] | None) -> Mapping[str, Json] | None:
    """Where there are any, the published schema has both kinds; most servers write the one that they know."""
    return {"content": None, "refusal": None, **logprobs} if logprobs else logprobs


FORMAT = AnswerFormat("chat.completion", "chat.completion.chunk", "chatcmpl-", body_choice, event_choice)
