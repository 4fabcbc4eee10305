"""A request of ours, which has OpenAI's shape, as one to Anthropic's Messages API.

What that API cannot do is refused by name if the answer would be another one without it, and left out if not.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import BadRequest
from gateway.types import ChatRequest, Json, Native
from gateway.wire.anthropic import messages_to_turns
from gateway.wire.anthropic.body_to_request import DIALECT
from gateway.wire.field_table import DECISIVE, NEUTRAL
from gateway.wire.json_form import form_instruction

PATH = "/v1/messages"
LEAST_THINKING = 1024
"""Tokens (https://platform.claude.com/docs/en/build-with-claude/extended-thinking)."""

_TRANSLATED = frozenset(
    {
        *(
            "max_completion_tokens",
            "max_tokens",
            "parallel_tool_calls",
            "reasoning_effort",
            "response_format",
        ),
        *(
            "stop",
            "stream_options",
            "temperature",
            "thinking",
            "tool_choice",
            "tools",
            "top_k",
            "top_p",
            "user",
        ),
    }
)
HOTTEST = 1
"""OpenAI's temperatures go to 2."""


def write_request(
    request: ChatRequest, model: str, *, max_tokens: int, prompted: bool = False
) -> dict[str, Json]:
    """The body to send; ``max_tokens`` is the cap where the caller set none, as this API demands one.

    ``prompted`` asks for a JSON schema in the prompt, as ``json_object`` always is: not every model has
    structured outputs, nor are all schemas fit for them.
    A body in this dialect is sent as it is, but for what policies change. Raises ``BadRequest`` for what this API has
    no equivalent of.
    """
    if request.native is not None and request.speaks(DIALECT):
        return _as_written(request, request.native, model)
    if request.messages is None:
        raise BadRequest(
            "This model's provider has no raw completions. Send messages to /v1/chat/completions instead.",
            param="prompt",
            code="unsupported_parameter",
        )
    params = {name: value for name, value in request.params.items() if value is not None}
    _refuse_unsupported(request, params)
    system, messages = messages_to_turns.write(request.messages)
    sent: dict[str, Json] = {
        "model": model,
        "max_tokens": cap_of(request, max_tokens),
        "messages": messages,
    }
    if request.stream:
        sent["stream"] = True
    if instruction := form_instruction(params.get("response_format"), prompted=prompted):
        system = [*system, {"type": "text", "text": instruction}]
    if system:
        sent["system"] = system
    if "temperature" in params:
        sent["temperature"] = min(params["temperature"], HOTTEST)
    for name in ("top_p", "top_k"):
        if name in params:
            sent[name] = params[name]
    if "thinking" in params:
        sent["thinking"] = _thinking(params["thinking"], sent["max_tokens"])
    if params.get("stop"):
        stop = params["stop"]
        sent["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if "user" in params:
        sent["metadata"] = {"user_id": params["user"]}
    if params.get("tools"):
        sent["tools"] = [_tool(tool, i) for i, tool in enumerate(params["tools"])]
        if choice := _tool_choice(params):
            sent["tool_choice"] = choice
    if config := _output_config(params, prompted=prompted):
        sent["output_config"] = config
    return sent


def left_out(request: ChatRequest) -> list[str]:
    """The parameters of ``request`` that ``write_request`` leaves out, and that would mean something elsewhere."""
    if request.speaks(DIALECT):
        return []
    return [
        name
        for name, value in request.params.items()
        if value is not None and name not in _TRANSLATED and value not in NEUTRAL.get(name, ())
    ]


def is_too_hot(request: ChatRequest) -> bool:
    """Whether ``write_request`` lowers the temperature."""
    return not request.speaks(DIALECT) and (request.params.get("temperature") or 0) > HOTTEST


def _as_written(request: ChatRequest, native: Native, model: str) -> dict[str, Json]:
    # Stages may have asked for more, such as a cascade for log-probabilities.
    _refuse_unsupported(request, {name: value for name, value in request.params.items() if value is not None})
    sent: dict[str, Json] = {**native.body, "model": model}
    if request.stream:  # which the gateway may want of an answer that the caller wants whole
        sent["stream"] = True
    cap = request.params.get("max_completion_tokens")
    if cap is not None and cap != sent.get("max_tokens"):
        sent["max_tokens"] = cap
        if "thinking" in sent:
            sent["thinking"] = _thinking(sent["thinking"], cap)
    return sent


def _thinking(thinking: Json, cap: int) -> Json:
    """``thinking`` with tokens left for an answer beside thinking, without which the API refuses the request."""
    match thinking:
        case {"budget_tokens": int(budget)} if budget >= cap:
            if cap <= LEAST_THINKING:
                return {"type": "disabled"}
            return {**thinking, "budget_tokens": max(LEAST_THINKING, cap // 2)}
    return thinking


def cap_of(request: ChatRequest, otherwise: int) -> int:
    """The caller's, or ``otherwise`` beside what it may think."""
    params = request.params
    asked = params.get("max_completion_tokens") or params.get("max_tokens")
    if asked:
        return int(asked)
    match params.get("thinking"):
        case {"type": "enabled", "budget_tokens": int(budget)} if budget > 0:
            return budget + otherwise
    return otherwise


def _refuse_unsupported(request: ChatRequest, params: Mapping[str, Json]) -> None:
    if request.n != 1:
        raise _unsupported("n")
    for name, value in params.items():
        if name in DECISIVE and value not in NEUTRAL.get(name, ()):
            raise _unsupported(name)


def _unsupported(name: str) -> BadRequest:
    return BadRequest(
        f"This model's provider does not support '{name}'. Leave it out, or ask another model.",
        param=name,
        code="unsupported_parameter",
    )


def _invalid(where: str, what: str) -> BadRequest:
    return BadRequest(f"'{where}' {what}.", param=where, code="invalid_value")


def _tool(tool: Json, i: int) -> dict[str, Json]:
    match tool:
        case {"type": "function", "function": {"name": str(name), **function}}:
            parameters = function.get("parameters") or {"properties": {}}
            if not isinstance(parameters, dict):
                raise _invalid(f"tools[{i}].function.parameters", "should be a JSON schema")
            written: dict[str, Json] = {"name": name, "input_schema": {"type": "object", **parameters}}
            if function.get("description"):
                written["description"] = function["description"]
            if function.get("strict"):
                written["strict"] = True
            if tool.get("cache_control"):
                written["cache_control"] = tool["cache_control"]
            return written
        case {"type": "function"}:
            raise _invalid(f"tools[{i}].function", "should be an object with a name")
    raise _unsupported(f"tools[{i}].type")


def _tool_choice(params: Mapping[str, Json]) -> dict[str, Json] | None:
    choice: dict[str, Json]
    match params.get("tool_choice", "auto"):
        case "none":
            return {"type": "none"}
        case "auto":
            choice = {"type": "auto"}
        case "required":
            choice = {"type": "any"}
        case {"type": "function", "function": {"name": str(name)}}:
            choice = {"type": "tool", "name": name}
        case _:
            raise _unsupported("tool_choice")
    if params.get("parallel_tool_calls") is False:
        choice["disable_parallel_tool_use"] = True
    # To let the model choose is what it does unasked.
    return None if choice == {"type": "auto"} else choice


def _closed(schema: Json) -> Json:
    """``schema`` with its objects closed, which structured outputs demand of them all."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {
        name: value if name in ("enum", "const", "default", "examples") else _closed(value)
        for name, value in schema.items()
    }
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _output_config(params: Mapping[str, Json], *, prompted: bool) -> dict[str, Json]:
    """How much thought to spend, and the shape of the answer."""
    config: dict[str, Json] = {}
    match params.get("reasoning_effort"):
        case None | "none":
            pass
        case "minimal":
            config["effort"] = "low"
        case "low" | "medium" | "high" | "xhigh" | "max" as effort:
            config["effort"] = effort
        case _:
            raise _unsupported("reasoning_effort")
    match params.get("response_format"):
        case None | {"type": "text"} | {"type": "json_object"}:
            pass
        case {"type": "json_schema", "json_schema": {"schema": dict()}} if prompted:
            pass
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            config["format"] = {"type": "json_schema", "schema": _closed(schema)}
        case _:
            raise _unsupported("response_format")
    return config
