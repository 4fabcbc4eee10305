"""A request to ``/v1/responses`` as one of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.errors import BadRequest
from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.types import ChatRequest, Json
from gateway.wire import json_body
from gateway.wire.obfuscation import is_wanted
from gateway.wire.responses import ids
from gateway.wire.responses.body import CountBody, CreateBody, InputBody, read_raw
from gateway.wire.responses.items import Item, read_items
from gateway.wire.responses.items_to_messages import write_messages
from gateway.wire.responses.sealed import SummarySeal
from gateway.wire.responses.tool_names import ToolName
from gateway.wire.responses.tools import read_format, read_tools

_SAME = frozenset(
    {
        *("temperature", "top_p", "presence_penalty", "frequency_penalty", "user", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "service_tier"),
    }
)
"""Parameters that chat completions have, too."""
_ECHOED = ("max_output_tokens", "max_tool_calls", "previous_response_id", "user", "safety_identifier")
_DEFAULTS: Mapping[str, Json] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "truncation": "disabled",
}
"""What a response says was used where the request does not say."""
LOGPROBS = "message.output_text.logprobs"
_BESIDE = frozenset({"access_programs", "client_metadata", "image"})
"""Of OpenAI's own service, or about the caller's program; without them nothing else is asked."""


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """What the caller asks for, before the conversation that it continues is known."""

    model: str
    items: Sequence[Item]
    """Of its ``input``, some without ids."""
    instructions: str | None
    params: Mapping[str, Json]
    """Of the chat completion."""
    echo: Mapping[str, Json]
    """What the response repeats of it."""
    previous: str | None = None
    """The id of the response that it continues."""
    store: bool = True
    stream: bool = False
    background: bool = False
    truncates: bool = False
    callable: frozenset[str] | None = None
    """The functions that alone may be called; None where all may."""
    tools: Mapping[str, ToolName] = field(default_factory=dict)
    """What the caller calls those that are no plain functions to him, by the functions' names."""
    left_out: tuple[str, ...] = ()
    """Types of tools that the gateway does not run, and the model is not offered."""
    max_tool_calls: int | None = None
    obfuscates: bool = False
    """The events of its stream are to be padded."""

    def chat(self, seal: SummarySeal, tenant: str, before: Sequence[Item] = ()) -> ChatRequest:
        """The request that is sent through the stages; ``before`` is the conversation that it continues. ``seal`` opens
        the compactions in it, which are ``tenant``'s.

        Raises ``BadRequest``.
        """
        messages = write_messages([*before, *self.items], self.instructions, seal, tenant)
        if not messages:
            raise _missing_input()
        return ChatRequest(
            model=self.model,
            messages=tuple(messages),
            stream=self.stream or self.background,
            params=self.params,
            truncates=self.truncates,
        )


def read_request(data: bytes, limits: RequestLimits = USUAL) -> ResponseRequest:
    """``POST /v1/responses``. Raises ``BadRequest``."""
    raw = read_raw(data, limits)
    return _read(json_body.check(CreateBody, raw), raw)


def read_count_request(data: bytes, limits: RequestLimits = USUAL) -> ResponseRequest:
    """``POST /v1/responses/input_tokens``. Raises ``BadRequest``."""
    raw = read_raw(data, limits)
    return _read(json_body.check(CountBody, raw), raw)


def read_conversation(known: InputBody) -> ResponseRequest:
    """A conversation, and nothing to be done with it. Raises ``BadRequest``."""
    return ResponseRequest(
        model=known.model,
        items=_items(known),
        instructions=known.instructions,
        params={},
        echo={},
        previous=_previous(known),
        store=False,
    )


def _read(known: CountBody, raw: Mapping[str, Json]) -> ResponseRequest:
    tools = read_tools(known.tools, known.tool_choice, known.parallel_tool_calls)
    asked_format, format_echo = read_format(known.text.format if known.text else None)
    params: dict[str, Json] = {**_unknown(raw), **tools.params}
    if asked_format is not None:
        params["response_format"] = asked_format
    if known.text and known.text.verbosity:
        params["verbosity"] = known.text.verbosity
    if known.reasoning and known.reasoning.effort:
        params["reasoning_effort"] = known.reasoning.effort
    body = known if isinstance(known, CreateBody) else None
    if body is not None:
        params |= _sampling(body)
        if body.background and body.store is False:
            raise BadRequest(
                "A response in the background can only be fetched where it is stored. Leave out 'store': false, or "
                "'background'.",
                param="background",
                code="invalid_value",
            )
        if body.background and body.stream:
            raise BadRequest(
                "A response in the background is not streamed here. Leave out 'stream', and fetch it by its id; or "
                "leave out 'background'.",
                param="stream",
                code="unsupported_parameter",
            )
    return ResponseRequest(
        model=known.model,
        items=_items(known),
        instructions=known.instructions,
        params=params,
        echo=_echo(known, raw, {**tools.echo, "text": {"format": format_echo, **_verbosity(known)}}),
        previous=_previous(known),
        store=body is not None and body.store is not False,
        stream=body is not None and bool(body.stream),
        background=body is not None and bool(body.background),
        truncates=known.truncation == "auto",
        callable=tools.callable,
        tools=tools.renamed,
        left_out=tools.left_out,
        max_tool_calls=body.max_tool_calls if body is not None else None,
        obfuscates=is_wanted(raw),
    )


def _items(known: InputBody) -> list[Item]:
    if known.input is None and known.previous_response_id is None:
        raise _missing_input()
    return read_items(known.input)


def _missing_input() -> BadRequest:
    return BadRequest(
        "Missing required parameter: 'input'.", param="input", code="missing_required_parameter"
    )


def _previous(known: InputBody) -> str | None:
    previous = known.previous_response_id
    if previous is not None and not ids.is_response_id(previous):
        raise unknown_response(previous, "previous_response_id")
    return previous


def unknown_response(response: str, param: str) -> BadRequest:
    """OpenAI's message, which clients recognise."""
    return BadRequest(
        f"Previous response with id '{response[:80]}' not found. It was not stored, was deleted, or is older than this "
        "gateway keeps it. Send the whole conversation as 'input'.",
        param=param,
        code="previous_response_not_found",
    )


def _sampling(body: CreateBody) -> dict[str, Json]:
    params: dict[str, Json] = {}
    if body.max_output_tokens is not None:
        params["max_completion_tokens"] = body.max_output_tokens
    if body.top_logprobs or LOGPROBS in (body.include or ()):
        params["logprobs"] = True
        params["top_logprobs"] = body.top_logprobs or 0
    return params


def _unknown(raw: Mapping[str, Json]) -> dict[str, Json]:
    """Parameters of chat completions, and of servers that have more."""
    known = CreateBody.model_fields.keys() | {"stream_options"} | _BESIDE
    return {
        name: value
        for name, value in raw.items()
        if value is not None and (name in _SAME or name not in known)
    }


def _verbosity(known: CountBody) -> dict[str, Json]:
    return {"verbosity": (known.text.verbosity if known.text else None) or "medium"}


def _echo(known: CountBody, raw: Mapping[str, Json], more: Mapping[str, Json]) -> dict[str, Json]:
    used = {name: raw[name] if raw.get(name) is not None else value for name, value in _DEFAULTS.items()}
    reasoning = known.reasoning
    return {
        "instructions": known.instructions,
        **{name: raw.get(name) for name in _ECHOED},
        "prompt_cache_key": raw.get("prompt_cache_key"),
        **used,
        **more,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "background": raw.get("background") is True,
        "service_tier": "default" if raw.get("service_tier") in (None, "auto") else raw["service_tier"],
        "metadata": raw.get("metadata") or {},
    }
