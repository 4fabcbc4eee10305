"""A conversation in OpenAI's shape as Anthropic's: the user and the assistant by turns, system texts apart."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence

import orjson

from gateway.errors import BadRequest
from gateway.types import Json
from gateway.wire.anthropic import ids
from gateway.wire.turns import OPENING

Block = dict[str, Json]

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w=.+-]+)*;base64,", re.ASCII)


def write(messages: Sequence[Mapping[str, Json]]) -> tuple[list[Block], list[dict[str, Json]]]:
    """``system`` and ``messages``. Raises ``BadRequest`` for content that the API does not take.

    Turns of one role that follow each other become one, as the results of parallel tool calls must come in one. The
    first must be a user's: before an assistant's there is ``OPENING``.
    """
    system: list[Block] = []
    turns: list[dict[str, Json]] = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        match message.get("role"):
            case "system" | "developer":
                system += _content(message.get("content"), f"{where}.content")
                continue
            case "user":
                role, blocks = "user", _content(message.get("content"), f"{where}.content")
            case "assistant":
                role, blocks = "assistant", _assistant(message, where)
            case "tool":
                role, blocks = "user", [_tool_result(message, where)]
            case _:
                raise _invalid(f"{where}.role", "should be system, developer, user, assistant or tool")
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    _trim_partial_answer(turns)
    if not turns:
        raise _invalid("messages", "should hold at least one message of a user that is not empty")
    if turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": [{"type": "text", "text": OPENING}]})
    return system, turns


def _trim_partial_answer(turns: list[dict[str, Json]]) -> None:
    """A last turn of the assistant's is gone on from, and must not end in white space there."""
    while turns and turns[-1]["role"] == "assistant":
        content = turns[-1]["content"]
        if not content:
            turns.pop()
            return
        last = content[-1]
        if last["type"] != "text":
            return
        last["text"] = last["text"].rstrip()
        if last["text"]:
            return
        content.pop()


def _content(content: Json, where: str) -> list[Block]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        raise _invalid(where, "should be a string or a list of parts")
    return [block for j, part in enumerate(content) for block in _part(part, f"{where}[{j}]")]


def _part(part: Json, where: str) -> Iterable[Block]:
    match part:
        # The API takes no empty texts.
        case {"type": "text", "text": ""} | {"type": "refusal", "refusal": ""}:
            return ()
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            block: Block = {"type": "text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            block = {"type": "image", "source": _source(url, f"{where}.image_url.url")}
        case {"type": "file", "file": {"file_data": str(url), **file}}:
            block = {"type": "document", "source": _document(_source(url, f"{where}.file.file_data"))}
            if file.get("filename"):
                block["title"] = file["filename"]
        case {"type": "file", "file": {"file_id": _}}:
            raise _invalid(
                f"{where}.file.file_id", "is no file that this model's provider knows; send file_data"
            )
        case {"type": "text" | "refusal" | "image_url" | "file" as kind}:
            raise _invalid(where, f"should have a '{kind}'")
        case {"type": str(kind)}:
            raise _invalid(f"{where}.type", f"is '{kind}', which this model's provider does not take")
        case _:
            raise _invalid(where, "should be an object with a type")
    if part.get("cache_control"):
        block["cache_control"] = part["cache_control"]
    return (block,)


def _source(url: str, where: str) -> dict[str, Json]:
    if data := _DATA_URL.match(url):
        return {"type": "base64", "media_type": data[1], "data": url[data.end() :]}
    if url.startswith(("https://", "http://")):
        return {"type": "url", "url": url}
    raise _invalid(where, "should be an http URL, or a data URL in base64")


def _document(source: dict[str, Json]) -> dict[str, Json]:
    """The API takes PDFs in base64, and texts as texts."""
    if source["type"] != "base64" or not source["media_type"].startswith("text/"):
        return source
    try:
        text = b64decode(source["data"], validate=True).decode()
    except ValueError:
        return source
    return {"type": "text", "media_type": "text/plain", "data": text}


def _assistant(message: Mapping[str, Json], where: str) -> list[Block]:
    if message.get("function_call"):
        raise _invalid(f"{where}.function_call", "is not supported; send tool_calls")
    content = message.get("content") or message.get("refusal")
    blocks = [*_thoughts(message.get("thinking_blocks")), *_content(content, f"{where}.content")]
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise _invalid(f"{where}.tool_calls", "should be a list")
    for j, call in enumerate(calls):
        at = f"{where}.tool_calls[{j}]"
        match call:
            case {"id": str(call_id), "function": {"name": str(name), **function}}:
                arguments = _arguments(function.get("arguments"), f"{at}.function.arguments")
                tool_id = ids.call_for_anthropic(call_id)
                blocks.append({"type": "tool_use", "id": tool_id, "name": name, "input": arguments})
            case _:
                raise _invalid(at, "should have an id and a function with a name")
    return blocks


def _thoughts(blocks: Json) -> Iterable[Block]:
    """Only signed ones: the API refuses others."""
    for block in blocks if isinstance(blocks, list) else ():
        match block:
            case {"type": "thinking", "thinking": str(text), "signature": str(signature)} if signature:
                yield {"type": "thinking", "thinking": text, "signature": signature}
            case {"type": "redacted_thinking", "data": str(data)}:
                yield {"type": "redacted_thinking", "data": data}


def _arguments(arguments: Json, where: str) -> dict[str, Json]:
    try:
        value = orjson.loads(arguments or "{}")
    except (orjson.JSONDecodeError, TypeError):
        value = None
    if not isinstance(value, dict):
        raise _invalid(where, "should be a JSON object, as text")
    return value


def _tool_result(message: Mapping[str, Json], where: str) -> Block:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str):
        raise _invalid(f"{where}.tool_call_id", "should be the id of the tool call that this answers")
    block: Block = {"type": "tool_result", "tool_use_id": ids.call_for_anthropic(call_id)}
    if content := _content(message.get("content"), f"{where}.content"):
        block["content"] = content
    return block


def _invalid(where: str, what: str) -> BadRequest:
    return BadRequest(f"'{where}' {what}.", param=where, code="invalid_value")
