"""Tools that chat completions have no form of, as functions: those of a namespace, and custom ones.

A namespace groups functions, whose calls name it beside themselves; a custom tool takes any text in place of JSON. A
model is offered functions, whose names and arguments are told back to the caller in the form that he declared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import orjson

from gateway.types import Json

LONGEST_NAME = 64
"""Of a function's (https://platform.openai.com/docs/api-reference/chat/create)."""
INPUT = "input"
"""The one argument of a custom tool's function."""

_DIGEST = 8
_BEGINNING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_LONGEST_BEGINNING = 64
_SURROGATES = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LETTERS = re.compile(rf'(?:[^"\\]++|\\["\\/bfnrt]|{_SURROGATES}|\\u(?![dD][89abAB])[0-9a-fA-F]{{4}})*+')
"""Of a JSON text, up to what is not whole yet."""
_LONGEST_LETTER = len(r"\ud83d\ude00")


@dataclass(frozen=True, slots=True)
class ToolName:
    """What a caller calls a tool."""

    name: str
    namespace: str | None = None
    is_custom: bool = False

    def fields(self) -> dict[str, Json]:
        """Of an item of a call."""
        return {"name": self.name} | ({} if self.namespace is None else {"namespace": self.namespace})


def function_name(name: str, namespace: Json) -> str:
    """What a model calls the tool ``name``: the same in every request, as it stands in the conversation, too."""
    if not isinstance(namespace, str) or not namespace:
        return name
    whole = f"{namespace}__{name}"
    if len(whole) <= LONGEST_NAME:
        return whole
    digest = sha256(whole.encode("utf-8", "replace")).hexdigest()[:_DIGEST]
    return f"{whole[: LONGEST_NAME - _DIGEST - 1]}_{digest}"


def custom_function(tool: Mapping[str, Json]) -> dict[str, Json]:
    """What a custom tool takes, told as a function's ``description`` and ``parameters``."""
    described = {"type": "string", "description": "The tool's input: free text, as it is."}
    match tool.get("format"):
        case {"type": "grammar", "syntax": str(syntax), "definition": str(definition)}:
            described["description"] = (
                f"The tool's input: text that follows this {syntax} grammar.\n{definition}"
            )
    told = {"description": tool["description"]} if tool.get("description") else {}
    parameters = {
        "type": "object",
        "properties": {INPUT: described},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return {**told, "parameters": parameters}


def write_input(text: str) -> str:
    """The arguments of a call of a custom tool's function."""
    return orjson.dumps({INPUT: text}).decode()


def read_input(arguments: str) -> str:
    """The text that a model gave a custom tool; what is no JSON is the text itself."""
    try:
        given = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        pieces = InputReader()
        text = pieces.feed(arguments)
        return text if pieces.is_text else arguments
    match given:
        case {"input": str(text)}:
            return _sound(text)
        case str(text):
            return _sound(text)
    return arguments


class InputReader:
    """Reads the text out of a custom tool's arguments while they come."""

    def __init__(self) -> None:
        self.is_text = False
        """It has begun."""
        self.length = 0
        """Of what was read."""
        self._rest = ""
        self._over = False

    def feed(self, arguments: str) -> str:
        """The further text in a further piece; empty until it can be told."""
        if self._over:
            return ""
        self._rest += arguments
        if not self.is_text:
            begun = _BEGINNING.match(self._rest)
            if begun is None:
                self._over = len(self._rest) > _LONGEST_BEGINNING
                return ""
            self.is_text = True
            self._rest = self._rest[begun.end() :]
        found = _LETTERS.match(self._rest)
        letters = found[0] if found else ""
        self._rest = self._rest[len(letters) :]
        # The text has ended, or is no JSON from here on.
        self._over = self._rest[:1] == '"' or len(self._rest) > _LONGEST_LETTER
        text = _sound(json.loads(f'"{letters}"', strict=False))
        self.length += len(text)
        return text


def _sound(text: str) -> str:
    """Without halves of characters, which cannot be written."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
