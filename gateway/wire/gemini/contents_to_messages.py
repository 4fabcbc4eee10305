"""Google's contents as messages in OpenAI's shape."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from pydantic import Field

from gateway.errors import BadRequest
from gateway.media import from_google
from gateway.types import Json
from gateway.wire import json_body
from gateway.wire.openai.chat import Lenient

Parts = list[dict[str, Json]]

_KNOWN = frozenset(
    {
        *("text", "inlineData", "fileData", "functionCall", "functionResponse"),
        # left out for other models: the thoughts are not theirs, and the last are hints
        *("thought", "thoughtSignature", "mediaResolution", "partMetadata"),
    }
)
_CALL = frozenset({"id", "name", "args"})
_RESPONSE = frozenset({"id", "name", "response", "parts"})
_GOOGLES_FILE = re.compile(r"(gs://|files/|https://generativelanguage\.googleapis\.com/)", re.IGNORECASE)
_ROLES = {None: "user", "user": "user", "function": "user", "model": "assistant"}


class Part(Lenient):
    """A part of any kind. What a kind must have is looked at where it is read."""

    text: str | None = None
    thought: bool | None = None
    thoughtSignature: str | None = None
    inlineData: dict[str, Any] | None = None
    fileData: dict[str, Any] | None = None
    functionCall: dict[str, Any] | None = None
    functionResponse: dict[str, Any] | None = None


class Content(Lenient):
    role: str | None = None
    parts: json_body.Items[Part] = Field(default_factory=list)


class MessagesBuilder:
    """The messages that were read so far, and the first part that only Google's own models understand."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Json]] = []
        self.beyond: tuple[str, str] | None = None
        self._waiting: list[tuple[str, str]] = []
        """Name and id of each call that has no result yet: ids are optional in this API."""

    def system(self, content: Mapping[str, Json] | None) -> None:
        """Raises ``BadRequest``, as does ``content``."""
        texts: list[str] = []
        for j, part in enumerate((content or {}).get("parts") or ()):
            at = f"systemInstruction.parts[{j}]"
            if isinstance(part.get("text"), str):
                texts.append(part["text"])
            elif part:
                raise invalid(at, "should be a text, as instructions can hold no other")
        if text := "\n\n".join(filter(None, texts)):
            self.messages.append({"role": "system", "content": text})

    def content(self, content: Mapping[str, Json], where: str) -> None:
        role = content.get("role") or None
        if role not in _ROLES:
            raise invalid(f"{where}.role", f"is '{str(role)[:64]}', and should be 'user' or 'model'")
        parts: Sequence[Mapping[str, Json]] = content.get("parts") or ()
        for j, part in enumerate(parts):
            if not part.keys() <= _KNOWN:
                name = next(iter(part.keys() - _KNOWN))
                self._foreign(f"{where}.parts[{j}].{name[:64]}", "a part")
        if _ROLES[role] == "assistant":
            self._model(parts, where)
            return
        found: Parts = []
        for j, part in enumerate(parts):
            at = f"{where}.parts[{j}]"
            if (response := part.get("functionResponse")) is not None:
                found += self._response(response, f"{at}.functionResponse")
            else:
                found += self._part(part, at)
        if found:
            self.messages.append({"role": "user", "content": _plain(found)})

    def _model(self, parts: Sequence[Mapping[str, Json]], where: str) -> None:
        said: Parts = []
        calls: list[dict[str, Json]] = []
        for j, part in enumerate(parts):
            at = f"{where}.parts[{j}]"
            if (call := part.get("functionCall")) is not None:
                calls.append(self._call(call, f"{at}.functionCall", f"call_{len(self.messages)}_{j}"))
            elif not part.get("thought"):  # only the model that thought it can make use of it
                said += self._part(part, at)
        if not said and not calls:
            return
        content: Json = _plain(said) if said else None
        if said and all(part["type"] == "text" for part in said):
            content = "".join(part["text"] for part in said)
        message: dict[str, Json] = {"role": "assistant", "content": content}
        self.messages.append({**message, "tool_calls": calls} if calls else message)

    def _call(self, call: Mapping[str, Json], where: str, otherwise: str) -> dict[str, Json]:
        name = call.get("name")
        if not isinstance(name, str) or not name:
            raise invalid(f"{where}.name", "should be the name of a function")
        arguments = call.get("args")
        if arguments is not None and not isinstance(arguments, dict):
            raise invalid(f"{where}.args", "should be an object")
        self._check(call, _CALL, where)
        given = call.get("id")
        call_id = given if isinstance(given, str) and given else otherwise
        self._waiting.append((name, call_id))
        written = orjson.dumps(arguments or {}).decode()
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": written}}

    def _response(self, response: Mapping[str, Json], where: str) -> Parts:
        """Adds the message of a tool, which is text only; returns the pictures that came with it."""
        name, given, value = response.get("name"), response.get("id"), response.get("response")
        if not isinstance(name, str) or not name:
            raise invalid(f"{where}.name", "should be the name of the function that was called")
        if value is not None and not isinstance(value, dict):
            raise invalid(f"{where}.response", "should be an object")
        self._check(response, _RESPONSE, where)
        inner = response.get("parts")
        more = [
            one
            for k, part in enumerate(inner if isinstance(inner, list) else ())
            for one in self._part(part, f"{where}.parts[{k}]")
        ]
        text = "\n".join([_said(value or {}), *(one["text"] for one in more if one["type"] == "text")])
        answered = self._answered(name, given if isinstance(given, str) and given else None)
        self.messages.append({"role": "tool", "tool_call_id": answered, "content": text})
        return [one for one in more if one["type"] != "text"]

    def _answered(self, name: str, id: str | None) -> str:
        """The id of the call that this result is of: by its own, by its name, or in order."""
        waiting = self._waiting
        for k, (called, known) in enumerate(waiting):
            if known == id or (id is None and called == name):
                del waiting[k]
                return known
        if id is None and waiting:
            return waiting.pop(0)[1]
        return id or f"call_{len(self.messages)}"

    def _part(self, part: Json, where: str) -> Parts:
        if not isinstance(part, Mapping):
            raise invalid(where, "should be a part")
        if (text := part.get("text")) is not None:
            if not isinstance(text, str):
                raise invalid(f"{where}.text", "should be a string")
            return [{"type": "text", "text": text}] if text else []
        if (medium := from_google(part)) is not None:
            url = (part.get("fileData") or {}).get("fileUri")
            if url is not None and _GOOGLES_FILE.match(url):
                self._foreign(f"{where}.fileData", "a file that Google keeps")
            return [medium]
        for name in ("inlineData", "fileData"):
            if name in part:
                needed = "data" if name == "inlineData" else "fileUri"
                raise invalid(f"{where}.{name}.{needed}", "is missing, or is no text")
        if "functionCall" in part or "functionResponse" in part:
            raise invalid(where, "belongs to the other side of the conversation")
        return []  # a signature alone, or what was noted as foreign

    def _check(self, fields: Mapping[str, Json], known: frozenset[str], where: str) -> None:
        for name in fields:
            if name not in known:
                self._foreign(f"{where}.{name[:64]}", "a field")

    def _foreign(self, where: str, what: str) -> None:
        self.beyond = self.beyond or (where, what)


def invalid(where: str, what: str) -> BadRequest:
    return BadRequest(f"'{where}' {what}.", param=where, code="invalid_value")


def _plain(parts: Parts) -> str | Parts:
    # A single text as a plain string, which every server takes.
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _said(response: Mapping[str, Json]) -> str:
    """A function's result: Google's SDKs wrap a text in an object of one field, by which it is told from an error."""
    match response:
        case {"output": str(text), **rest} | {"result": str(text), **rest} if not rest:
            return text
        case {"error": str(text), **rest} if not rest:
            return f"Error: {text}"
    return orjson.dumps(response).decode()
