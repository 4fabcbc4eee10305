"""Anthropic's turns as messages in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import orjson
from pydantic import ConfigDict

from gateway.client_metadata import split_metadata
from gateway.errors import BadRequest
from gateway.types import Json
from gateway.wire import json_body
from gateway.wire.anthropic import documented, ids
from gateway.wire.openai.chat import Lenient

Parts = list[dict[str, Json]]

_ARTICLES = {"image": "an image", "document": "a document"}
_SOURCES = frozenset({"base64", "content", "file", "text", "url"})


class Block(Lenient):
    """A content block of any kind. What a kind must have is looked at where it is read."""

    model_config = ConfigDict(json_schema_extra=documented.block)

    type: str
    text: Any = None
    id: Any = None
    name: Any = None
    input: Any = None
    tool_use_id: Any = None
    content: Any = None
    is_error: Any = None
    source: Any = None
    title: Any = None


class Turn(Lenient):
    model_config = ConfigDict(json_schema_extra=documented.turn)

    role: Literal["user", "assistant", "system"]
    content: str | json_body.Items[Block]


class MessagesBuilder:
    """The messages that were read so far, and the first block that only the provider's own models understand."""

    def __init__(self) -> None:
        self._prompt: list[str] = []
        """The system's texts."""
        self._turns: list[dict[str, Json]] = []
        self.beyond: tuple[str, str] | None = None
        self.client = ""
        """What the caller's program said of itself in the system prompt, which the messages are without."""
        self._answered = False

    @property
    def messages(self) -> list[dict[str, Json]]:
        text = "\n\n".join(self._prompt)
        return [{"role": "system", "content": text}, *self._turns] if text else self._turns

    def system(self, content: str | Sequence[Block] | None) -> None:
        """Raises ``BadRequest``, as do the others."""
        texts = _system_texts(content, "system")
        if texts:
            self.client, texts[0] = split_metadata(texts[0])
        self._prompt += texts if texts and texts[0] else texts[1:]

    def turn(self, turn: Turn, where: str) -> None:
        """Tool results are messages of their own, ahead of the turn's other content."""
        at = f"{where}.content"
        self._answered = self._answered or turn.role == "assistant"
        if turn.role == "system":
            self._instruct(_system_texts(turn.content, at))
            return
        if isinstance(turn.content, str):
            self._turns.append({"role": turn.role, "content": turn.content})
            return
        match turn.role:
            case "assistant":
                self._assistant(turn.content, at)
            case "user":
                parts: Parts = []
                for j, block in enumerate(turn.content):
                    if block.type == "tool_result":
                        parts += self._tool_result(block, f"{at}[{j}]")
                    else:
                        parts += self._parts(block, f"{at}[{j}]")
                if parts:
                    self._turns.append({"role": "user", "content": _plain(parts)})

    def _instruct(self, texts: list[str]) -> None:
        """A system message among the turns. Before the first answer it is part of the system prompt: Claude Code sends
        the same 6,000 characters behind each conversation's first words, where no cached prefix would reach them."""
        if self._answered:
            self._turns.append({"role": "system", "content": "\n\n".join(texts)})
        else:
            self._prompt += texts

    def _assistant(self, blocks: list[Block], where: str) -> None:
        parts: Parts = []
        calls: list[dict[str, Json]] = []
        for j, block in enumerate(blocks):
            match block.type:
                case "text":
                    parts.append({"type": "text", "text": _text(block, f"{where}[{j}]")})
                case "tool_use":
                    calls.append(_call(block, f"{where}[{j}]"))
                case "thinking" | "redacted_thinking":
                    pass  # Only the model that thought it can make use of it.
                case _:
                    parts.append(self._foreign(block, f"{where}[{j}]"))
        if not parts and not calls:
            return
        plain = "".join(part["text"] for part in parts if part["type"] == "text")
        content: Json = plain if all(part["type"] == "text" for part in parts) else parts
        message = {"role": "assistant", "content": content or None if calls else content}
        self._turns.append({**message, "tool_calls": calls} if calls else message)

    def _tool_result(self, block: Block, where: str) -> Parts:
        """Adds the message of a tool, which is text only; returns the pictures that came with it."""
        if not isinstance(block.tool_use_id, str):
            raise _invalid(f"{where}.tool_use_id", "should be the id of the tool_use that this answers")
        parts = self._content(block.content, f"{where}.content")
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
        if block.is_error:  # for which OpenAI's shape has no field
            text = f"Error: {text}"
        pictures = [part for part in parts if part["type"] != "text"]
        if pictures and not text:
            text = "The result follows."
        self._turns.append(
            {"role": "tool", "tool_call_id": ids.call_to_openai(block.tool_use_id), "content": text}
        )
        return pictures

    def _content(self, content: Json, where: str) -> Parts:
        """What a block holds: a text, or blocks."""
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        if content is None:
            return []
        if not isinstance(content, list):
            raise _invalid(where, "should be a string or a list of blocks")
        parts: Parts = []
        for k, inner in enumerate(content):
            at = f"{where}[{k}]"
            if not isinstance(inner, dict):
                raise _invalid(at, "should be a block")
            parts += self._parts(json_body.check(Block, inner), at)
        return parts

    def _parts(self, block: Block, where: str) -> Parts:
        match block.type:
            case "text":
                return [{"type": "text", "text": _text(block, where)}]
            case "image":
                return [self._image(block, where)]
            case "document":
                return self._document(block, where)
            case "search_result":
                return self._content(block.content, f"{where}.content")
        return [self._foreign(block, where)]

    def _image(self, block: Block, where: str) -> dict[str, Json]:
        match block.source:
            case {"type": "base64", "media_type": str(kind), "data": str(data)}:
                return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
            case {"type": "url", "url": str(url)}:
                return {"type": "image_url", "image_url": {"url": url}}
        return self._sourced(block, where)

    def _document(self, block: Block, where: str) -> Parts:
        match block.source:
            case {"type": "text", "data": str(text)}:
                return [{"type": "text", "text": text}]
            case {"type": "content", "content": content}:
                return self._content(content, f"{where}.source.content")
            case {"type": "base64", "media_type": str(kind), "data": str(data)}:
                name = block.title if isinstance(block.title, str) and block.title else "document.pdf"
                file = {"filename": name, "file_data": f"data:{kind};base64,{data}"}
                return [{"type": "file", "file": file}]
            case {"type": "url", "url": str(url)}:
                titled = {"filename": block.title} if isinstance(block.title, str) and block.title else {}
                return [{"type": "file", "file": {**titled, "file_data": url}}]
        return [self._sourced(block, where)]

    def _sourced(self, block: Block, where: str) -> dict[str, Json]:
        """A picture or a document that only the provider can get hold of."""
        match block.source:
            case {"type": "url", "url": str()} | {"type": "file", "file_id": str()}:
                pass
            case {"type": str(kind)} if kind not in _SOURCES:
                pass
            case _:
                raise _invalid(f"{where}.source", f"should hold the {block.type}, or say where it is")
        return self._foreign(block, where, f"{_ARTICLES[block.type]} by {block.source['type']}")

    def _foreign(self, block: Block, where: str, what: str = "") -> dict[str, Json]:
        """What only the provider's own models understand."""
        self.beyond = self.beyond or (where, what or f"a block of type '{block.type}'")
        return {"type": block.type, "block": block.model_dump(exclude_unset=True)}


def _system_texts(content: str | Sequence[Block] | None, where: str) -> list[str]:
    if content is None or isinstance(content, str):
        return [content] if content else []
    return [_text(block, f"{where}[{j}]") for j, block in enumerate(content)]


def _call(block: Block, where: str) -> dict[str, Json]:
    if not (isinstance(block.id, str) and isinstance(block.name, str) and isinstance(block.input, dict)):
        raise _invalid(where, "should have an id, a name and an input")
    function = {"name": block.name, "arguments": orjson.dumps(block.input).decode()}
    return {"id": ids.call_to_openai(block.id), "type": "function", "function": function}


def _plain(parts: Parts) -> str | Parts:
    # A single text as a plain string, which every server takes.
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _text(block: Block, where: str) -> str:
    if block.type != "text":
        raise _invalid(f"{where}.type", f"is '{block.type}', and should be 'text' here")
    if not isinstance(block.text, str):
        raise _invalid(f"{where}.text", "is missing" if block.text is None else "should be a string")
    return block.text


def _invalid(where: str, what: str) -> BadRequest:
    return BadRequest(f"'{where}' {what}.", param=where, code="invalid_value")
