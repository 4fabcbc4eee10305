"""A conversation in OpenAI's shape as turns of typed parts, for APIs with a shape of their own.

What is malformed raises ``BadRequest`` here, by its path, so that translations meet sound parts only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from mimetypes import guess_type
from typing import Literal, NoReturn

import orjson

from gateway.errors import BadRequest
from gateway.types import ChatRequest, Json

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w=.+-]+)*;base64,", re.ASCII)
_URL = re.compile(r"[a-z][a-z0-9+.-]{1,15}://\S+", re.IGNORECASE)

OPENING = "(You begin.)"
"""What a user says before an assistant that speaks first, where an API demands that the user does."""

MediaKind = Literal["image", "audio", "video", "file"]


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    cached: bool = False
    """The caller wants the prompt up to here cached (``cache_control``)."""


@dataclass(frozen=True, slots=True)
class Media:
    """What is no text: as base64, or by its URL."""

    kind: MediaKind
    where: str
    """Its path in the request, for whoever must refuse it."""
    type: str | None = None
    """Its media type, where that is known."""
    data: str | None = None
    url: str | None = None
    name: str | None = None

    def refused(self, why: str) -> BadRequest:
        return BadRequest(f"'{self.where}' {why}.", param=self.where, code="unsupported_parameter")


@dataclass(frozen=True, slots=True)
class Thought:
    """A thought in the form in which its model gave it: signed, or hidden."""

    text: str = ""
    signature: str = ""
    hidden: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: Mapping[str, Json]
    more: Mapping[str, Json] = field(default_factory=dict)
    """A provider's further fields of it."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    id: str
    name: str
    parts: tuple[Text | Media, ...]


Part = Text | Media | Thought | ToolCall | ToolResult


@dataclass(slots=True)
class Turn:
    role: Literal["user", "assistant"]
    parts: list[Part]
    more: Mapping[str, Json] = field(default_factory=dict)
    """A provider's further fields of the assistant's message (``extra_content``)."""


def messages_of(request: ChatRequest) -> Sequence[Json]:
    """A request's conversation. Raises ``BadRequest`` for a raw prompt, and for what only the API that the caller wrote
    it for knows."""
    if request.messages is None:
        raise BadRequest(
            "This model's provider has no raw completions. Send messages to /v1/chat/completions instead.",
            param="prompt",
            code="unsupported_parameter",
        )
    if request.native is not None and request.native.beyond is not None:
        where, what = request.native.beyond
        raise BadRequest(
            f"'{where}' is {what}, which this model's provider does not know. Leave it out, or ask a model of the "
            "provider whose it is.",
            param=where,
            code="unsupported_parameter",
        )
    return request.messages


def read_turns(messages: Sequence[Mapping[str, Json]]) -> tuple[list[Text], list[Turn]]:
    """The system's texts, and the turns, of which a user's is the first. Messages of one role that follow each other
    are one turn."""
    system: list[Text] = []
    turns: list[Turn] = []
    names: dict[str, str] = {}
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        role = message.get("role")
        parts: list[Part]
        match role:
            case "system" | "developer":
                for part in _content(message.get("content"), f"{where}.content"):
                    if isinstance(part, Media):
                        _invalid(part.where, "is no text, and instructions can hold no other")
                    system.append(part)
                continue
            case "user":
                parts = [*_content(message.get("content"), f"{where}.content")]
            case "assistant":
                parts = _assistant(message, where)
                names.update({part.id: part.name for part in parts if isinstance(part, ToolCall)})
            case "tool":
                parts = [_result(message, where, names)]
            case _:
                _invalid(f"{where}.role", "should be system, developer, user, assistant or tool")
        more = message.get("extra_content")
        side: Literal["user", "assistant"] = "assistant" if role == "assistant" else "user"
        if turns and turns[-1].role == side:
            turns[-1].parts += parts
            turns[-1].more = more or turns[-1].more
        elif parts:
            turns.append(Turn(side, parts, more if isinstance(more, Mapping) else {}))
    if not turns:
        _invalid("messages", "should hold at least one message of a user that is not empty")
    if turns[0].role == "assistant":
        turns.insert(0, Turn("user", [Text(OPENING)]))
    return system, turns


def _content(content: Json, where: str) -> Iterable[Text | Media]:
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (Text(content),)
    if not isinstance(content, list):
        _invalid(where, "should be a string or a list of parts")
    return [part for j, raw in enumerate(content) for part in _part(raw, f"{where}[{j}]")]


def _part(part: Json, where: str) -> Iterable[Text | Media]:
    match part:
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return (Text(text, bool(part.get("cache_control"))),) if text else ()
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return (_media("image", url, f"{where}.image_url.url"),)
        case {"type": "video_url", "video_url": {"url": str(url)} | str(url)}:
            return (_media("video", url, f"{where}.video_url.url"),)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(format)}}:
            return (Media("audio", f"{where}.input_audio", f"audio/{format}", data),)
        case {"type": "file", "file": {"file_data": str(url), **file}}:
            name = file.get("filename")
            return (_media("file", url, f"{where}.file.file_data", name if isinstance(name, str) else None),)
        case {"type": "file", "file": {"file_id": str(url)}} if _URL.fullmatch(url):
            return (_media("file", url, f"{where}.file.file_id"),)
        case {"type": "file", "file": {"file_id": _}}:
            _invalid(f"{where}.file.file_id", "is no file that this model's provider knows; send file_data")
        case {"type": "text" | "refusal" | "image_url" | "video_url" | "input_audio" | "file" as kind}:
            _invalid(where, f"should have a '{kind}' that is whole")
        case {"type": str(kind)}:
            _invalid(f"{where}.type", f"is '{kind[:64]}', which this model's provider does not take")
    _invalid(where, "should be an object with a type")


def _media(kind: MediaKind, url: str, where: str, name: str | None = None) -> Media:
    if data := _DATA_URL.match(url):
        return Media(kind, where, data[1], url[data.end() :], name=name)
    if _URL.fullmatch(url):
        return Media(kind, where, guess_type(url.partition("?")[0])[0], url=url, name=name)
    _invalid(where, "should be a URL, or a data URL in base64")


def _assistant(message: Mapping[str, Json], where: str) -> list[Part]:
    if message.get("function_call"):
        _invalid(f"{where}.function_call", "is not supported; send tool_calls")
    content = message.get("content") or message.get("refusal")
    parts: list[Part] = [*_thoughts(message.get("thinking_blocks")), *_content(content, f"{where}.content")]
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        _invalid(f"{where}.tool_calls", "should be a list")
    for j, call in enumerate(calls):
        match call:
            case {"id": str(id), "function": {"name": str(name), **function}}:
                arguments = _arguments(
                    function.get("arguments"), f"{where}.tool_calls[{j}].function.arguments"
                )
                more = call.get("extra_content")
                parts.append(ToolCall(id, name, arguments, more if isinstance(more, Mapping) else {}))
            case _:
                _invalid(f"{where}.tool_calls[{j}]", "should have an id and a function with a name")
    return parts


def _thoughts(blocks: Json) -> Iterable[Thought]:
    for block in blocks if isinstance(blocks, list) else ():
        match block:
            case {"type": "thinking", "thinking": str(text), "signature": str(signature)} if signature:
                yield Thought(text, signature)
            case {"type": "redacted_thinking", "data": str(data)}:
                yield Thought(hidden=data)


def _arguments(arguments: Json, where: str) -> dict[str, Json]:
    try:
        value = orjson.loads(arguments or "{}")
    except (orjson.JSONDecodeError, TypeError):
        value = None
    if not isinstance(value, dict):
        _invalid(where, "should be a JSON object, as text")
    return value


def _result(message: Mapping[str, Json], where: str, names: Mapping[str, str]) -> ToolResult:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str):
        _invalid(f"{where}.tool_call_id", "should be the id of the tool call that this answers")
    name = names.get(call_id) or message.get("name")
    if not isinstance(name, str) or not name:
        _invalid(f"{where}.tool_call_id", "answers no tool call of the messages before it")
    return ToolResult(call_id, name, tuple(_content(message.get("content"), f"{where}.content")))


def _invalid(where: str, what: str) -> NoReturn:
    raise BadRequest(f"'{where}' {what}.", param=where, code="invalid_value")
