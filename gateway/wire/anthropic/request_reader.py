"""A request to Anthropic's Messages API as one of ours, which has OpenAI's shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from gateway.errors import BadRequest
from gateway.types import ChatRequest, Json
from gateway.wire import body
from gateway.wire.openai_chat import Lenient

Parts = list[dict[str, Json]]


class Block(Lenient):
    """A content block of any kind."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    source: dict[str, Any] | None = None
    title: str | None = None


class Turn(Lenient):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Metadata(Lenient):
    user_id: str | None = None


class Tool(Lenient):
    type: str | None = None
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Lenient):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(Lenient):
    format: dict[str, Any] | None = None


class CountBody(Lenient):
    """What ``/v1/messages/count_tokens`` takes."""

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None


class MessagesBody(CountBody):
    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    metadata: Metadata | None = None


def read_request(data: bytes) -> ChatRequest:
    """Parameters that only concern the provider's own models (``thinking``, ``cache_control``, betas) are left out.

    Raises ``BadRequest``.
    """
    known = body.check(MessagesBody, body.read_json(data))
    params: dict[str, Json] = {"max_completion_tokens": known.max_tokens}
    for name in ("temperature", "top_p", "top_k"):
        value = getattr(known, name)
        if value is not None:
            params[name] = value
    if known.stop_sequences:
        params["stop"] = known.stop_sequences
    if known.metadata and known.metadata.user_id:
        params["user"] = known.metadata.user_id
    return _request(known, params, stream=bool(known.stream))


def read_count_request(data: bytes) -> ChatRequest:
    """A request whose tokens are only to be counted. Raises ``BadRequest``."""
    return _request(body.check(CountBody, body.read_json(data)), {}, stream=False)


def _request(known: CountBody, params: dict[str, Json], *, stream: bool) -> ChatRequest:
    messages: list[dict[str, Json]] = []
    if system := _system(known.system, "system"):
        messages.append({"role": "system", "content": system})
    for i, turn in enumerate(known.messages):
        messages += _messages(turn, f"messages[{i}]")
    if not messages or messages[-1].get("tool_calls"):
        raise _invalid("messages", "should end with a turn that the model can answer")
    if known.tools:
        params["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(known.tools)]
        params |= _tool_choice(known.tool_choice)
    if known.output_config and known.output_config.format:
        params["response_format"] = _response_format(known.output_config.format)
    return ChatRequest(
        model=known.model,
        messages=tuple(messages),
        stream=stream,
        params=params,
        continues=messages[-1]["role"] == "assistant",
    )


def _messages(turn: Turn, where: str) -> Iterator[dict[str, Json]]:
    """A turn's messages: tool results are messages of their own, ahead of what else the turn says."""
    if isinstance(turn.content, str):
        yield {"role": turn.role, "content": turn.content}
        return
    at = f"{where}.content"
    match turn.role:
        case "system":
            yield {"role": "system", "content": _system(turn.content, at)}
        case "assistant":
            if message := _assistant(turn.content, at):
                yield message
        case "user":
            parts: Parts = []
            for j, block in enumerate(turn.content):
                if block.type == "tool_result":
                    message, pictures = _tool_result(block, f"{at}[{j}]")
                    yield message
                    parts += pictures
                else:
                    parts.append(_part(block, f"{at}[{j}]"))
            if parts:
                yield {"role": "user", "content": _plain(parts)}


def _system(content: str | list[Block] | None, where: str) -> str:
    if not isinstance(content, list):
        return content or ""
    return "\n\n".join(_text(block, f"{where}[{j}]") for j, block in enumerate(content))


def _assistant(blocks: list[Block], where: str) -> dict[str, Json] | None:
    said: list[str] = []
    calls: list[dict[str, Json]] = []
    for j, block in enumerate(blocks):
        match block.type:
            case "text":
                said.append(_text(block, f"{where}[{j}]"))
            case "tool_use":
                if block.id is None or block.name is None or block.input is None:
                    raise _invalid(f"{where}[{j}]", "should have an id, a name and an input")
                arguments = orjson.dumps(block.input).decode()
                function = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": function})
            case "thinking" | "redacted_thinking":
                pass  # Only the model that thought it can make use of it.
            case kind:
                raise _invalid(f"{where}[{j}].type", f"is '{kind}', which is not supported here")
    if calls:
        return {"role": "assistant", "content": "".join(said) or None, "tool_calls": calls}
    return {"role": "assistant", "content": "".join(said)} if said else None


def _tool_result(block: Block, where: str) -> tuple[dict[str, Json], Parts]:
    """The message of a tool, which is text only, and the pictures that came with it."""
    if block.tool_use_id is None:
        raise _invalid(f"{where}.tool_use_id", "should be the id of the tool_use that this answers")
    parts: Parts = []
    if isinstance(block.content, str):
        parts.append({"type": "text", "text": block.content})
    else:
        parts += (_part(inner, f"{where}.content[{k}]") for k, inner in enumerate(block.content or ()))
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    if block.is_error:  # for which OpenAI's shape has no field
        text = f"Error: {text}"
    pictures = [part for part in parts if part["type"] != "text"]
    if pictures and not text:
        text = "The result follows."
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}, pictures


def _part(block: Block, where: str) -> dict[str, Json]:
    match block.type:
        case "text":
            return {"type": "text", "text": _text(block, where)}
        case "image":
            return {"type": "image_url", "image_url": {"url": _url(block.source, f"{where}.source")}}
        case "document":
            return _document(block, f"{where}.source")
    raise _invalid(f"{where}.type", f"is '{block.type}', which is not supported here")


def _document(block: Block, where: str) -> dict[str, Json]:
    match block.source:
        case {"type": "text", "data": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "base64"}:
            file = {"filename": block.title or "document.pdf", "file_data": _url(block.source, where)}
            return {"type": "file", "file": file}
    raise _invalid(where, "should hold the document itself, as base64 or text")


def _url(source: dict[str, Json] | None, where: str) -> str:
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            return f"data:{kind};base64,{data}"
        case {"type": "url", "url": str(url)}:
            return url
    raise _invalid(where, "should be of type base64 with a media_type and data, or of type url with a url")


def _plain(parts: Parts) -> str | Parts:
    # A single text as a plain string, which every server takes.
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _text(block: Block, where: str) -> str:
    if block.type != "text":
        raise _invalid(f"{where}.type", f"is '{block.type}', and should be 'text' here")
    if block.text is None:
        raise _invalid(f"{where}.text", "is missing")
    return block.text


def _tool(tool: Tool, where: str) -> dict[str, Json]:
    if tool.type not in (None, "custom"):
        raise _invalid(
            f"{where}.type", f"is '{tool.type}'; only tools of the caller's own are supported here"
        )
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
        case kind:
            params["tool_choice"] = kind
    return params


def _response_format(wanted: dict[str, Json]) -> dict[str, Json]:
    match wanted:
        case {"type": "json_schema", "schema": dict(schema)}:
            named = {"name": "answer", "schema": schema, "strict": True}
            return {"type": "json_schema", "json_schema": named}
    raise _invalid("output_config.format", "should be of type json_schema with a schema")


def _invalid(where: str, what: str) -> BadRequest:
    return BadRequest(f"'{where}' {what}.", param=where, code="invalid_value")
