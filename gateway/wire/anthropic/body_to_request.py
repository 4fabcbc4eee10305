"""A request to Anthropic's Messages API as one of ours, which has OpenAI's shape, with the original body beside it.

Blocks, tools and parameters that OpenAI's shape lacks are accepted: a model of
Anthropic's gets them unchanged. ``Native.beyond`` names the first that another model could not do without.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from gateway.errors import BadRequest
from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.types import ChatRequest, Json, Native
from gateway.wire import json_body
from gateway.wire.anthropic import documented
from gateway.wire.anthropic.blocks_to_messages import Block, MessagesBuilder, Turn
from gateway.wire.openai.chat import Lenient

DIALECT = "anthropic"


_CHOICES = frozenset({"any", "auto", "none", "tool"})


class Metadata(Lenient):
    user_id: str | None = None


class Tool(Lenient):
    model_config = ConfigDict(json_schema_extra=documented.tool)

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Lenient):
    model_config = ConfigDict(json_schema_extra=documented.tool_choice)

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(Lenient):
    format: dict[str, Any] | None = None


class SystemBlock(Block):
    model_config = ConfigDict(json_schema_extra=documented.text_block)


class CountBody(Lenient):
    """What ``/v1/messages/count_tokens`` takes."""

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[json_body.Items[Turn], Field(min_length=1)]
    system: str | json_body.Items[SystemBlock] | None = None
    tools: json_body.Items[Tool] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None


class MessagesBody(CountBody):
    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool | None = None
    stop_sequences: json_body.Items[str] | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    metadata: Metadata | None = None


def read_request(data: bytes, limits: RequestLimits = USUAL) -> ChatRequest:
    """Raises ``BadRequest``."""
    return _read(MessagesBody, json_body.read_json(data, limits))


def read_count_request(data: bytes, limits: RequestLimits = USUAL) -> ChatRequest:
    """A request whose tokens are only to be counted. Raises ``BadRequest``."""
    return _read(CountBody, json_body.read_json(data, limits))


def _read(schema: type[CountBody], raw: Mapping[str, Json]) -> ChatRequest:
    known = json_body.check(schema, dict(raw))
    conversation = MessagesBuilder()
    conversation.system(known.system)
    for i, turn in enumerate(known.messages):
        conversation.turn(turn, f"messages[{i}]")
    messages = conversation.messages
    if not messages or messages[-1].get("tool_calls"):
        raise _invalid("messages", "should end with a turn that the model can answer")
    params = _sampling(known) if isinstance(known, MessagesBody) else {}
    beyond = conversation.beyond
    if known.tools:
        tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(known.tools)]
        params["tools"] = [tool for tool in tools if tool is not None]
        params |= _tool_choice(known.tool_choice)
        if known.tool_choice and known.tool_choice.type not in _CHOICES:
            beyond = beyond or ("tool_choice", f"a choice of type '{known.tool_choice.type}'")
        if None in tools:
            typed = tools.index(None)
            beyond = beyond or (f"tools[{typed}]", f"a tool of type '{known.tools[typed].type}'")
    if known.output_config and known.output_config.format:
        form = _response_format(known.output_config.format)
        if form is None:
            beyond = beyond or ("output_config.format", "a format other than a JSON schema")
        else:
            params["response_format"] = form
    for name in ("container", "mcp_servers"):
        if raw.get(name):
            beyond = beyond or (name, "run by the provider itself")
    return ChatRequest(
        model=known.model,
        messages=tuple(messages),
        stream=isinstance(known, MessagesBody) and bool(known.stream),
        params=params,
        continues=messages[-1]["role"] == "assistant",
        native=Native(DIALECT, raw, partial(_read, schema), beyond, conversation.client),
    )


def _sampling(known: MessagesBody) -> dict[str, Json]:
    params: dict[str, Json] = {"max_completion_tokens": known.max_tokens}
    for name in ("temperature", "top_p", "top_k"):
        value = getattr(known, name)
        if value is not None:
            params[name] = value
    if known.stop_sequences:
        params["stop"] = known.stop_sequences
    if known.metadata and known.metadata.user_id:
        params["user"] = known.metadata.user_id
    return params


def _tool(tool: Tool, where: str) -> dict[str, Json] | None:
    """None for a tool that only the provider's own models know."""
    if tool.type not in (None, "custom"):
        return None
    if not tool.name:
        raise _invalid(f"{where}.name", "is missing")
    if tool.input_schema is None:
        raise _invalid(f"{where}.input_schema", "is missing")
    function: dict[str, Json] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description:
        function["description"] = tool.description
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice | None) -> dict[str, Json]:
    if choice is None:
        return {}
    params: dict[str, Json] = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    match choice.type:
        case "tool" if choice.name is None:
            raise _invalid("tool_choice.name", "should be the name of a tool")
        case "tool":
            params["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
        case "any":
            params["tool_choice"] = "required"
        case "auto" | "none" as kind:
            params["tool_choice"] = kind
    return params


def _response_format(wanted: dict[str, Json]) -> dict[str, Json] | None:
    match wanted:
        case {"type": "json_schema", "schema": dict(schema)}:
            named = {"name": "answer", "schema": schema, "strict": True}
            return {"type": "json_schema", "json_schema": named}
    return None


def _invalid(where: str, what: str) -> BadRequest:
    return BadRequest(f"'{where}' {what}.", param=where, code="invalid_value")
