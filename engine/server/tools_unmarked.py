"""Calls without their format's marker, as small models write them: the whole answer is JSON of offered tools' calls.

    ```json
    {"name": "weather", "arguments": {"city": "Paris"}}
    ```

The object may also stand alone, in ``<tools>`` tags or in doubled braces, with its last brace missing or one too many,
and there may be several of them or a list; a tool's definition that is repeated before them is passed over.
Qwen2.5-Coder writes most of its calls so (https://github.com/vllm-project/vllm/issues/32926). Whether a text is such an
answer is certain only at its end: a call in an explanation is none.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from engine.server.tools_source import Broken, Reading, Source, decoded, is_held, is_object

_INFO = ("json", "tool_call", "tool_calls")
"""What may stand behind a fence."""
_KNOWN = ("name", "arguments", "parameters", "function")
_OPENING = {"`": "```", "<": "<tools>"}
_CLOSING = {"`": "```", "<": "</tools>"}


def offered(name: str, names: Collection[str]) -> str | None:
    """The tool that ``name`` means: its own, or the only one that differs in nothing but case."""
    if name in names:
        return name
    alike = [one for one in names if one.casefold() == name.casefold()]
    return alike[0] if len(alike) == 1 else None


class UnmarkedCalls:
    """An answer of which it is not known yet whether it is nothing but calls."""

    def __init__(self, names: Collection[str], *, alone: bool = True, strict: Collection[str] = ()) -> None:
        """``names``: of the tools. ``alone``: whether a call's object may begin the answer; where the format has that
        itself, it streams it. ``strict``: tools that are called only where a grammar holds their arguments."""
        self._names = names
        self._strict = strict
        self._alone = alone
        self._source = Source()
        self._held: list[str] = []
        self._calls: list[tuple[str, str]] = []
        self._between = True
        """Whether no call is being read."""
        self._name: str | None = None
        self._arguments: str | None = None
        self._bound = False
        """Whether the arguments stand where a strict tool's are held to their schema."""
        self._is_definition = False
        """Whether the tool is repeated as it was offered, and not called: such an object is passed over."""
        self._may_close_again = False
        """Whether a call has just ended: models that double braces close them once too often."""
        self._lacks_brace = False
        """Whether nothing but the call's last brace is missing."""
        self._reading = self._answer()
        next(self._reading)

    @property
    def held(self) -> str:
        """All that was read."""
        return "".join(self._held)

    def push(self, text: str) -> bool:
        """Whether the answer may still be nothing but calls."""
        self._held.append(text)
        try:
            for char in text:
                self._reading.send(char)
        except Broken:
            return False
        return True

    def finish(self) -> list[tuple[str, str]]:
        """Names and arguments of the calls that the answer is; none if it is text."""
        if self._lacks_brace:
            try:
                self._add()
            except Broken:
                return []
        return self._calls if self._between else []

    def _answer(self) -> Reading:
        while True:
            char = yield from self._source.sign()
            if char in _OPENING:
                yield from self._rest_of(_OPENING[char])
                yield from self._calls_until(char)
            elif char == "{" and not self._alone:
                raise Broken
            else:
                yield from self._item(char)
            self._alone = True

    def _calls_until(self, opening: str) -> Reading:
        closing = _CLOSING[opening]
        if opening == "`":
            yield from self._info()
        while (char := (yield from self._source.sign())) != closing[0]:
            yield from self._item(char)
        yield from self._rest_of(closing)
        return ""

    def _rest_of(self, sign: str) -> Reading:
        for wanted in sign[1:]:
            if (yield from self._source.next()) != wanted:
                raise Broken
        return ""

    def _info(self) -> Reading:
        found = ""
        while (char := (yield from self._source.next())) not in "\r\n{[":
            found += char
            if not any(info.startswith(found.strip()) for info in _INFO):
                raise Broken
        if found.strip() not in ("", *_INFO):
            raise Broken
        self._source.pushed_back = char
        return ""

    def _item(self, char: str) -> Reading:
        """A call or a list of them, or what may stand between."""
        surplus, self._may_close_again = self._may_close_again, False
        if char == "[":
            while char != "]":
                yield from self._source.sign("{")
                yield from self._call()
                char = yield from self._source.sign(",", "]")
        elif char == "{":
            yield from self._call()
            self._may_close_again = True
        elif not (surplus and char == "}") and (char not in ",;" or not self._calls):
            raise Broken
        return ""

    def _call(self) -> Reading:
        """A call's object after its first brace."""
        self._between, self._name, self._arguments = False, None, None
        self._is_definition = self._bound = False
        char = yield from self._source.sign('"', "{")
        doubled = char == "{"
        if doubled:
            char = yield from self._source.sign('"')
        yield from self._fields(char)
        if doubled:
            yield from self._source.sign("}")
        self._add()
        return ""

    def _add(self) -> None:
        if self._name is None or self._arguments is None:
            raise Broken
        if not self._is_definition:
            if self._name in self._strict and not self._bound:
                raise Broken
            self._calls.append((self._name, self._arguments))
        self._between, self._lacks_brace = True, False

    def _fields(self, char: str, *, inner: bool = False) -> Reading:
        """In any order, up to the object's last brace."""
        before, name = "", ""
        while True:
            written = yield from self._source.value(char)
            key = decoded(written)
            yield from self._source.sign(":")
            char = yield from self._source.sign()
            if key == "name" and char == '"' and self._name is None:
                name = yield from self._source.value(char)
                self._name = offered(decoded(name), self._names)
                if self._name is None:
                    raise Broken
            elif key in ("arguments", "parameters") and self._arguments is None:
                text: list[str] = []
                self._bound = is_held(before, name, written, char)
                yield from self._source.value(char, text.append)
                self._arguments = _object("".join(text))
                self._is_definition = key == "parameters" and _is_schema(self._arguments)
            elif key == "function" and char == "{" and not inner:
                yield from self._fields((yield from self._source.sign('"')), inner=True)
            elif key in _KNOWN or (self._name is None and key not in ("type", "id")):
                raise Broken
            else:
                # Parts of the tool's description, say, that the model goes on with.
                yield from self._source.value(char)
            before = written
            self._lacks_brace = self._name is not None and self._arguments is not None
            if (yield from self._source.sign(",", "}")) == "}":
                return ""
            self._lacks_brace = False
            char = yield from self._source.sign('"')


def _is_schema(source: str) -> bool:
    """Whether a JSON object is one that describes arguments."""
    found = json.loads(source)
    return found.get("type") == "object" and isinstance(found.get("properties"), dict)


def _object(source: str) -> str:
    """Arguments as an object's JSON. Raises ``Broken``."""
    if source.startswith('"'):
        # Some models write the object as a string, as OpenAI's API does.
        source = decoded(source)
    if source == "null":
        return "{}"
    found = source if is_object(source) else source[1:-1].strip()
    if not is_object(found):
        raise Broken
    return found
