"""What the scripted providers say, whatever the dialect."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import uuid4

from starlette.requests import Request

TEXT = "One, two, three, four, five."
THOUGHT = "The caller wants words; I count."
REFUSAL = "I can't help with that."


class Wish(StrEnum):
    """A last message that is one of these gets what no request can ask for."""

    REFUSE = "/refuse"
    OVERLOADED = "/overloaded"
    RATE_LIMITED = "/rate-limited"
    BROKEN = "/broken"
    TOO_LONG = "/too-long"
    SLOW = "/slow"
    """A beginning, and then nothing until the caller leaves."""


BUSY = "/busy"
"""A last message that begins so is refused once, with a second to wait, and answered when it comes again."""


@dataclass(frozen=True)
class Text:
    """The words of an answer, in tokens, and why it ended there."""

    tokens: tuple[str, ...]
    cut: bool = False
    """By the limit on tokens."""
    stop: str | None = None
    """The stop sequence it ended before."""


def is_busy(words: str, heard: set[str]) -> bool:
    """Whether ``words`` are refused this time; ``heard`` is what has been."""
    if not words.startswith(BUSY) or words in heard:
        return False
    heard.add(words)
    return True


async def paced(events: Iterable[bytes], words: str, *, held_back: int = 2) -> AsyncIterator[bytes]:
    """A stream's events; where slowness is the wish, the last ones never come."""
    if words != Wish.SLOW:
        for event in events:
            yield event
        return
    for event in list(events)[:-held_back]:
        yield event
    await asyncio.Event().wait()


async def pause(words: str, request: Request) -> None:
    """Before a whole answer: where slowness is the wish, until its caller has left."""
    if words == Wish.SLOW:
        await request.receive()


def picture(size: int) -> str:
    """What is said of a picture of so many bytes: that it has come whole."""
    return f"A picture of {size} bytes."


def size_of(url: str) -> int:
    """How many bytes a ``data:`` URL has; of any other URL, its letters."""
    head, comma, data = url.partition(",")
    return len(b64decode(data, validate=True)) if comma and head.endswith(";base64") else len(url)


def new_id(length: int = 29) -> str:
    """The end of an answer's id, which no other answer has."""
    return uuid4().hex[:length]


def text(whole: str, *, limit: int | None, stops: Sequence[str]) -> Text:
    """``whole``, ended before the first stop sequence in it, or after ``limit`` tokens."""
    found = min((s for s in stops if s and s in whole), key=whole.index, default=None)
    tokens = tuple(split(whole if found is None else whole[: whole.index(found)]))
    if limit is not None and limit < len(tokens):
        return Text(tokens[:limit], cut=True)
    return Text(tokens, stop=found)


def split(words: str) -> list[str]:
    """``words`` in tokens: a word is one, with the space before it."""
    first, *rest = words.split(" ")
    return [token for token in (first, *(f" {word}" for word in rest)) if token]


def count(value: Any) -> int:
    """How many tokens a request's ``messages``, or part of them, are: one for every four letters, at least one."""
    return max(1, len(str(value)) // 4)


def instance(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> Any:
    """The least value that ``schema`` (JSON Schema) allows, as far as strict structured outputs know its words."""
    root = schema if root is None else root
    if "$ref" in schema:
        target: Any = root
        for name in str(schema["$ref"]).removeprefix("#").strip("/").split("/"):
            target = target[name] if name else target
        return instance(target, root)
    for name in ("anyOf", "oneOf"):
        if schema.get(name):
            return instance(schema[name][0], root)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "object")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            fields = schema.get("properties") or {}
            return {name: instance(fields.get(name, {"type": "string"}), root) for name in _needed(schema)}
        case "array":
            return [instance(schema.get("items") or {}, root) for _ in range(schema.get("minItems", 0))]
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return "Paris".ljust(schema.get("minLength", 0), "!")


def _needed(schema: Mapping[str, Any]) -> list[str]:
    return list(schema.get("required") or schema.get("properties") or ())


def last_words(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the last message."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return " ".join(str(part["text"]) for part in parts if isinstance(part, dict) and part.get("text"))
