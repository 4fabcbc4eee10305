"""The texts of a request: where they are, their origin, and how they are replaced."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gateway.errors import BadRequest
from gateway.guards.actions import native
from gateway.guards.actions.native import DEEPEST, Path
from gateway.guards.scanners.escapes import Unescaping
from gateway.guards.scanners.scanner import Origin
from gateway.types import ChatRequest, Json, Native

Kind = Literal["text", "json", "name"]

_ORIGINS: Mapping[str, Origin] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_DESCRIBING = frozenset(("description", "title", "default", "const", "enum", "example", "examples"))
"""Of JSON Schema's keywords (draft 2020-12, validation, section 9), those whose values are prose."""
_WHOLE: Mapping[str, Origin] = {
    "documents": "tool",
    "metadata": "user",
    "web_search_options": "user",
    "chat_template_kwargs": "user",
}
"""Parameters whose texts are all read: those that vLLM and others put into the prompt, and those that servers store."""
_HALF = re.compile(r"\\u[dD][89a-fA-F]", re.ASCII)
"""The escape of a high surrogate (RFC 8259, section 7)."""
_AT_ONCE = 5_000
"""Texts that are read between two turns of the event loop, in some 10 ms."""
_STEP = 500
"""Parts of a message between two chances for one."""
_ANSWER_FIELDS = ("refusal", "reasoning_content", "reasoning")


@dataclass(slots=True)
class RequestText:
    """One text of a request.

    Of ``json``, the arguments of a tool call, ``text`` has keys and values, one a line; edits leave it valid JSON. A
    ``name`` allows few characters.
    """

    path: Path
    text: str
    origin: Origin
    kind: Kind = "text"
    document: Json = None
    """The parsed ``json``."""


@dataclass(slots=True)
class RequestTexts:
    """All texts of a request: first those that stay the same from turn to turn, then its messages in order.

    Placeholders are numbered in this order. As new messages come last, later turns leave the prefix unchanged that a
    provider has cached, and so the thoughts that it signed.
    """

    texts: list[RequestText] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Content that is not text: ``image_url``, ``input_audio``, ``token_ids`` …"""

    @classmethod
    def of(cls, request: ChatRequest) -> RequestTexts:
        """Raises ``BadRequest`` for what is nested too deeply."""
        texts = cls()
        for _ in texts._steps(request):
            pass
        return texts

    @classmethod
    async def read(cls, request: ChatRequest) -> RequestTexts:
        """``of``, which yields to the event loop between the parts of long messages."""
        texts = cls()
        read = 0
        for _ in texts._steps(request):
            if len(texts.texts) - read >= _AT_ONCE:
                read = len(texts.texts)
                await asyncio.sleep(0)
        return texts

    def _steps(self, request: ChatRequest) -> Iterator[None]:
        if request.native is not None:
            yield from self._native(request.native.body)
            return
        params = request.params
        for name in ("suffix", "user", "safety_identifier", "prompt_cache_key"):
            self._described(("params", name), params.get(name), "user", prose=True)
        prediction = params.get("prediction")
        if isinstance(prediction, Mapping):
            yield from self._content(("params", "prediction", "content"), prediction.get("content"), "user")
        for name in ("tools", "functions", "response_format"):
            self._described(("params", name), params.get(name), "system")
        for name, origin in _WHOLE.items():
            self._described(("params", name), params.get(name), origin, prose=True)
        if request.prompt is not None:
            self._prompt(request.prompt)
        for i, message in enumerate(request.messages or ()):
            yield from self._message(("messages", i), message)
            yield

    def _native(self, body: Mapping[str, Json]) -> Iterator[None]:
        """A request in the caller's own dialect, in which it is sent upstream."""
        below: Path = ("native",)
        for path, value, is_schema in native.tools(body):
            self._described((*below, *path), value, "system", prose=not is_schema)
        self._described((*below, "output_config"), body.get("output_config"), "system")
        for name in native.others(body):
            self._described((*below, name), body[name], "user", prose=True)
        for path, value, origin, kind in native.conversation(body):
            yield
            if kind == "unread":
                self.unread.append(str(path[-1]))
            elif kind == "arguments":
                if _is_deep(value):
                    raise BadRequest(
                        f"The input of a tool call has more than {DEEPEST} levels.", param="messages"
                    )
                self._document((*below, *path), value, origin)
            else:
                self._add((*below, *path), value, origin, "name" if kind == "name" else "text")

    def _add(self, path: Path, text: Json, origin: Origin, kind: Kind = "text") -> None:
        if isinstance(text, str) and text:
            self.texts.append(RequestText(path, text, origin, kind))

    def _message(self, path: Path, message: Mapping[str, Json]) -> Iterator[None]:
        origin = _ORIGINS.get(str(message.get("role")), "user")
        self._add((*path, "name"), message.get("name"), origin, "name")
        yield from self._content((*path, "thinking_blocks"), message.get("thinking_blocks"), origin)
        yield from self._content((*path, "content"), message.get("content"), origin)
        for name in _ANSWER_FIELDS:
            self._add((*path, name), message.get(name), origin)
        calls = message.get("tool_calls")
        for i, call in enumerate(calls if isinstance(calls, list) else ()):
            for kind in ("function", "custom") if isinstance(call, Mapping) else ():
                self._call((*path, "tool_calls", i, kind), call.get(kind), origin)
        self._call((*path, "function_call"), message.get("function_call"), origin)
        if message.get("audio") is not None:
            self.unread.append("audio")

    def _content(self, path: Path, content: Json, origin: Origin) -> Iterator[None]:
        if not isinstance(content, list):
            self._described(path, content, origin, prose=True)
            return
        for i, part in enumerate(content):
            if not i % _STEP:
                yield
            if not isinstance(part, Mapping):
                self._add((*path, i), part, origin)
            elif len(part) == 2 and part.get("type") == "text" and isinstance(part.get("text"), str):
                self._add((*path, i, "text"), part["text"], origin)  # nearly all of them
            elif not (yield from self._part((*path, i), part, origin)):
                self.unread.append(str(part.get("type"))[:40])

    def _part(self, path: Path, part: Mapping[str, Json], origin: Origin) -> Generator[None, None, bool]:
        """Whether there is text in it: its own, or that of a document or of a tool's result (Anthropic's blocks)."""
        if len(path) > DEEPEST:
            raise BadRequest(f"A message has more than {DEEPEST} levels.", param="messages")
        count = len(self.texts)
        names = ("text", "refusal", "thinking", "title", "context")
        for name in names:
            self._add((*path, name), part.get(name), origin)
        source = part.get("source")
        if isinstance(source, Mapping):
            if source.get("type") == "text":
                self._add((*path, "source", "data"), source.get("data"), "tool")
            yield from self._content((*path, "source", "content"), source.get("content"), "tool")
        yield from self._content((*path, "content"), part.get("content"), "tool")
        return len(self.texts) > count or any(isinstance(part.get(name), str) for name in names)

    def _call(self, path: Path, function: Json, origin: Origin) -> None:
        if not isinstance(function, Mapping):
            return
        self._add((*path, "name"), function.get("name"), origin, "name")
        self._add((*path, "input"), function.get("input"), origin)
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            self._described((*path, "arguments"), arguments, origin, prose=True)
        if not isinstance(arguments, str) or not arguments:
            return
        try:
            self._document((*path, "arguments"), _parsed(arguments), origin)
        except ValueError:
            self._add((*path, "arguments"), _unescaped(arguments), origin)

    def _document(self, path: Path, document: Json, origin: Origin) -> None:
        text = "\n".join(_leaf_text(value) for value in _leaves(document))
        self.texts.append(RequestText(path, text, origin, "json", document))

    def _described(self, path: Path, value: Json, origin: Origin, *, prose: bool = False) -> None:
        """The prose in definitions and schemas, not their names and keywords. With ``prose``, every string is."""
        if len(path) > DEEPEST:
            raise BadRequest(f"'{path[1]}' has more than {DEEPEST} levels.", param=str(path[1]))
        if isinstance(value, str):
            if prose:
                self._add(path, value, origin)
        elif isinstance(value, Mapping):
            named = bool(path) and path[-1] == "properties"
            for key, one in value.items():
                here = prose or (not named and key in _DESCRIBING)
                self._described((*path, key), one, origin, prose=here)
        elif isinstance(value, list):
            for i, one in enumerate(value):
                self._described((*path, i), one, origin, prose=prose)

    def _prompt(self, prompt: Json) -> None:
        if isinstance(prompt, str):
            self._add(("prompt",), prompt, "user")
            return
        for i, one in enumerate(prompt):
            self._add(("prompt", i), one, "user")
        if not all(isinstance(one, str) for one in prompt):
            self.unread.append("token_ids")


def replaced(request: ChatRequest, texts: Mapping[Path, str]) -> ChatRequest:
    """A copy of ``request`` with other texts at these paths."""
    if request.native is not None:
        return _native_replaced(request, request.native, {path[1:]: text for path, text in texts.items()})
    fresh = {name: _put_all(getattr(request, str(name)), below) for name, below in _by_step(texts).items()}
    return replace(request, **{str(name): value for name, value in fresh.items()})


def _native_replaced(request: ChatRequest, own: Native, texts: Mapping[Path, str]) -> ChatRequest:
    """A native request with other texts at these paths, and its canonical form."""
    values = {
        # The input of a call is an object there, not JSON text.
        path: text if isinstance(_at(own.body, path), str) else json.loads(text)
        for path, text in texts.items()
    }
    fresh = own.read(_put_all(own.body, values))
    changed = {name: fresh.params[name] for name in _TEXT_PARAMS if name in fresh.params}
    return replace(
        request, messages=fresh.messages, params={**request.params, **changed}, native=fresh.native
    )


_TEXT_PARAMS = ("tools", "response_format", "user")
"""Parameters that hold texts."""


def _at(tree: Json, path: Path) -> Json:
    for step in path:
        tree = tree[step]
    return tree


def _put_all(tree: Json, values: Mapping[Path, Json]) -> Json:
    """``put`` for each of ``values``, with at most one copy of any object."""
    if () in values:
        return values[()]
    copy: Any = dict(tree) if isinstance(tree, Mapping) else list(tree)
    for step, below in _by_step(values).items():
        copy[step] = _put_all(copy[step], below)
    return tuple(copy) if isinstance(tree, tuple) else copy


def _by_step(values: Mapping[Path, Json]) -> dict[str | int, dict[Path, Json]]:
    below: dict[str | int, dict[Path, Json]] = {}
    for path, value in values.items():
        below.setdefault(path[0], {})[path[1:]] = value
    return below


def put(tree: Json, path: Path, value: Json) -> Json:
    """A copy of ``tree`` with ``value`` at ``path``; everything off the path is shared."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(tree, Mapping):
        return {**tree, step: put(tree[str(step)], rest, value)}
    copy = list(tree)
    copy[int(step)] = put(copy[int(step)], rest, value)
    return tuple(copy) if isinstance(tree, tuple) else copy


def _leaves(document: Json) -> Iterator[Json]:
    """Keys and values, in order."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield key
            yield from _leaves(value)
    elif isinstance(document, list):
        for value in document:
            yield from _leaves(value)
    else:
        yield document


def argument_texts(arguments: str) -> str:
    """The keys and values of a tool call's arguments, a line each; unchanged if it is not JSON."""
    try:
        return "\n".join(map(_leaf_text, _leaves(_parsed(arguments))))
    except ValueError:
        return _unescaped(arguments)


def _parsed(arguments: str) -> Json:
    """Raises ``ValueError`` for what is not JSON, is nested too deeply, or would not survive being written again."""
    try:
        document = json.loads(
            arguments, object_pairs_hook=_distinct, parse_float=_finite, parse_constant=_finite
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _is_deep(document):
        raise ValueError("nested too deeply")
    if _HALF.search(arguments):
        json.dumps(document, ensure_ascii=False).encode()  # a lone surrogate raises UnicodeError
    return document


def _distinct(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice, and only its last value would be read")
    return found


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is not JSON, or not a Python number")
    return value


def _unescaped(arguments: str) -> str:
    """With the escapes undone that hide characters from patterns."""
    return Unescaping().feed(arguments + "\n").removesuffix("\n")


def _is_deep(document: Json) -> bool:
    level = [document]
    for _ in range(DEEPEST):
        level = [
            one
            for each in level
            if isinstance(each, dict | list)
            for one in (each.values() if isinstance(each, dict) else each)
        ]
    return bool(level)


def _leaf_text(leaf: Json) -> str:
    return leaf if isinstance(leaf, str) else json.dumps(leaf)


def rewritten(document: Json, edit: Mapping[int, str]) -> str:
    """The JSON text of ``document`` with some of its leaves, by number, replaced."""
    number = -1

    def leaf(value: Json) -> Json:
        nonlocal number
        number += 1
        return edit.get(number, value)

    def walk(value: Json) -> Json:
        if isinstance(value, dict):
            return {leaf(key): walk(one) for key, one in value.items()}
        if isinstance(value, list):
            return [walk(one) for one in value]
        return leaf(value)

    return json.dumps(walk(document), ensure_ascii=False, separators=(",", ":"))


def leaf_spans(document: Json) -> list[tuple[int, int]]:
    """Where the leaves are in the ``text`` of ``document``."""
    spans = []
    start = 0
    for value in _leaves(document):
        end = start + len(_leaf_text(value))
        spans.append((start, end))
        start = end + 1
    return spans
