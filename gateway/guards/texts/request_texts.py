"""The texts of a request: where they are, and their origin."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.errors import BadRequest
from gateway.guards.scanners.scanner import Origin
from gateway.guards.texts import anthropic_texts, google_texts
from gateway.guards.texts.anthropic_texts import Found
from gateway.guards.texts.arguments import is_deep, leaf_text, leaves, parsed, unescaped
from gateway.guards.texts.definitions import Definitions
from gateway.guards.texts.paths import DEEPEST, Path
from gateway.guards.texts.urls import is_data, readable_url
from gateway.types import ChatRequest, Json

Kind = Literal["text", "json", "name", "id", "url", "fixed"]

_ORIGINS: Mapping[str, Origin] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_USERS = ("suffix", "user", "safety_identifier", "prompt_cache_key")
_DEFINING = ("tools", "functions", "response_format")
_WHOLE: Mapping[str, Origin] = {
    "documents": "tool",
    "text_2": "tool",
    "metadata": "user",
    "web_search_options": "user",
    "chat_template_kwargs": "user",
}
"""Parameters whose texts are all read: those that vLLM and others put into the prompt, and those that servers store."""
_SETTINGS = frozenset(
    {
        *(
            "stream_options",
            "logit_bias",
            "modalities",
            "audio",
            "service_tier",
        ),
        *("reasoning_effort", "verbosity", "encoding_format", "prediction", "stop"),
        *(*_USERS, *_DEFINING, *_WHOLE),
    }
)
"""Parameters that hold no text, or one that is read by itself; all others are read as definitions are."""
_MESSAGE = frozenset(
    {
        *(
            "role",
            "name",
            "content",
            "thinking_blocks",
            "refusal",
            "reasoning_content",
            "reasoning",
            "tool_calls",
        ),
        *("function_call", "audio", "tool_call_id", "cache_control", "index"),
    }
)
_CALL = frozenset({"id", "type", "index", "function", "custom"})
_FUNCTION = frozenset({"name", "arguments", "input"})
_PART_TEXTS = ("text", "refusal", "thinking", "title", "context")
_LINKS = ("image_url", "video_url", "audio_url")
_PART = frozenset(
    {
        *(
            "type",
            "source",
            "content",
            "tool_use_id",
            "input_audio",
            "file",
            "cache_control",
            "citations",
            "index",
        ),
        *("signature", "data", "id", *_PART_TEXTS, *_LINKS),
    }
)
"""Fields of messages, calls and parts that are read by themselves, or hold no text."""
_PARAMETER = re.compile(r"[a-z]{1,24}(?:_[a-z]{1,24}){0,3}", re.ASCII)
"""A name as parameters have, of few words; all others are read."""
_SIGNATURE = re.compile(r"[\w+/=-]*", re.ASCII)
_AT_ONCE = 5_000
"""Texts that are read between two turns of the event loop, in some 10 ms."""
_STEP = 500
"""Parts of a message between two chances for one."""
_ANSWER_FIELDS = ("refusal", "reasoning_content", "reasoning")


@dataclass(slots=True)
class RequestText:
    """One text of a request.

    Of ``json``, the arguments of a tool call, ``text`` has keys and values, one a line; edits leave it valid JSON. Of a
    ``url``, ``text`` is decoded. A ``name`` allows few characters, and so does an ``id``, which must differ from others
    still. What is ``fixed``, such as the names of tools, cannot be edited.
    """

    path: Path
    text: str
    origin: Origin
    kind: Kind = "text"
    document: Json = None
    """The parsed ``json``, or the whole ``url``."""


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

    @property
    def characters(self) -> int:
        """Of all that is prose."""
        return sum(
            len(text.text) for text in self.texts if text.origin != "identifier" and text.kind != "fixed"
        )

    def _steps(self, request: ChatRequest) -> Iterator[None]:
        if request.native is not None:
            own = request.native
            yield from self._google(own.body) if own.dialect == "gemini" else self._native(own.body)
            return
        if request.params:
            yield from self._parameters(request.params)
        if request.prompt is not None:
            self._prompt(request.prompt)
        if request.form is not None:
            self.unread += request.form.unread
        messages = request.messages or ()
        last = len(messages) - 1
        for i, message in enumerate(messages):
            origin = _ORIGINS.get(str(message.get("role")), "user")
            if i == last and origin == "assistant":
                origin = "user"  # what the model is to go on with is its caller's
            content = message.get("content")
            if len(message) == 2 and "role" in message and isinstance(content, str):  # as nearly all are
                self._add(("messages", i, "content"), content, origin)
            else:
                yield from self._message(("messages", i), message, origin)
            yield

    def _parameters(self, params: Mapping[str, Json]) -> Iterator[None]:
        if not _SETTINGS.isdisjoint(params):
            yield from self._settings(params)
        for name, value in params.items():
            if name not in _SETTINGS:
                self._described(("params", name), value, "user")
        self._named(("params",), params, "user")

    def _settings(self, params: Mapping[str, Json]) -> Iterator[None]:
        for name in _USERS:
            self._described(("params", name), params.get(name), "user", prose=True)
        prediction = params.get("prediction")
        if isinstance(prediction, Mapping):
            yield from self._content(("params", "prediction", "content"), prediction.get("content"), "user")
        for name in _DEFINING:
            self._described(("params", name), params.get(name), "definition")
        for name, origin in _WHOLE.items():
            self._described(("params", name), params.get(name), origin, prose=True)
        self._described(("params", "stop"), params.get("stop"), "identifier", prose=True)

    def _native(self, body: Mapping[str, Json]) -> Iterator[None]:
        """A request in Anthropic's dialect, in which it is sent upstream."""
        below: Path = ("native",)
        definitions = Definitions()
        for path, value, is_schema in anthropic_texts.tools(body):
            definitions.read((*below, *path), value, prose=not is_schema)
        definitions.read((*below, "output_config"), body.get("output_config"))
        self._defined((*below, "tools"), definitions, "definition")
        self._described((*below, "stop_sequences"), body.get("stop_sequences"), "identifier", prose=True)
        for name in anthropic_texts.others(body):
            self._described((*below, name), body[name], "user", prose=True)
        self._named(below, anthropic_texts.others(body), "user")
        yield from self._turns(below, anthropic_texts.conversation(body))

    def _google(self, body: Mapping[str, Json]) -> Iterator[None]:
        """A request in Google's dialect, in which it is sent upstream."""
        below: Path = ("native",)
        definitions = Definitions()
        for path, value, is_schema in google_texts.tools(body):
            definitions.read((*below, *path), value, prose=not is_schema)
        for path, value in google_texts.forms(body):
            definitions.read((*below, *path), value)
        self._defined((*below, "tools"), definitions, "definition")
        where, stops = google_texts.stops(body)
        self._described((*below, *where), stops, "identifier", prose=True)
        for path, value in google_texts.config(body):
            self._described((*below, *path), value, "user")
        for name in google_texts.others(body):
            self._described((*below, name), body[name], "user", prose=True)
        self._named(below, google_texts.named(body), "user")
        yield from self._turns(below, google_texts.conversation(body))

    def _turns(self, below: Path, conversation: Iterable[Found]) -> Iterator[None]:
        for path, value, origin, kind in conversation:
            yield
            if kind == "unread":
                self.unread.append(str(path[-1]))
            elif kind == "arguments":
                if is_deep(value):
                    raise BadRequest(
                        f"The input of a tool call has more than {DEEPEST} levels.", param="messages"
                    )
                self._document((*below, *path), value, origin)
            elif kind == "field":
                self._named((*below, *path), (value,), origin)
            elif kind == "url":
                self._url((*below, *path), value)
            elif kind == "id":
                self._add((*below, *path), value, "identifier", "id")
            else:
                self._add((*below, *path), value, origin, "name" if kind == "name" else "text")

    def _add(self, path: Path, text: Json, origin: Origin, kind: Kind = "text") -> None:
        if isinstance(text, str) and text:
            self.texts.append(RequestText(path, text, origin, kind))

    def _message(self, path: Path, message: Mapping[str, Json], origin: Origin) -> Iterator[None]:
        self._add((*path, "name"), message.get("name"), origin, "name")
        self._add((*path, "tool_call_id"), message.get("tool_call_id"), "identifier", "id")
        yield from self._content((*path, "thinking_blocks"), message.get("thinking_blocks"), origin)
        yield from self._content((*path, "content"), message.get("content"), origin)
        for name in _ANSWER_FIELDS:
            self._add((*path, name), message.get(name), origin)
        calls = message.get("tool_calls")
        for i, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, Mapping):
                self._add((*path, "tool_calls", i, "id"), call.get("id"), "identifier", "id")
                for kind in ("function", "custom"):
                    self._call((*path, "tool_calls", i, kind), call.get(kind), origin)
                if not call.keys() <= _CALL:
                    self._rest((*path, "tool_calls", i), call, _CALL, origin)
        self._call((*path, "function_call"), message.get("function_call"), origin)
        if message.get("audio") is not None:
            self.unread.append("audio")
        if not message.keys() <= _MESSAGE:
            self._rest(path, message, _MESSAGE, origin)

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
        for name in _PART_TEXTS:
            self._add((*path, name), part.get(name), origin)
        source = part.get("source")
        if isinstance(source, Mapping):
            if source.get("type") == "text":
                self._add((*path, "source", "data"), source.get("data"), "tool")
            yield from self._content((*path, "source", "content"), source.get("content"), "tool")
        yield from self._content((*path, "content"), part.get("content"), "tool")
        is_text = len(self.texts) > count or any(isinstance(part.get(name), str) for name in _PART_TEXTS)
        self._beside_text(path, part, origin)
        return is_text

    def _beside_text(self, path: Path, part: Mapping[str, Json], origin: Origin) -> None:
        """Addresses and names of what is not text itself, and fields that nobody knows."""
        self._add((*path, "tool_use_id"), part.get("tool_use_id"), "identifier", "id")
        for name in (*_LINKS, "source"):
            link = part.get(name)
            self._url((*path, name, "url") if isinstance(link, Mapping) else (*path, name), link)
        file = part.get("file")
        if isinstance(file, Mapping):
            self._add((*path, "file", "filename"), file.get("filename"), origin)
        if not part.keys() <= _PART:
            self._rest(path, part, _PART, origin)

    def _url(self, path: Path, link: Json) -> None:
        url = link.get("url") if isinstance(link, Mapping) else link
        if isinstance(url, str) and url and not is_data(url):
            self.texts.append(RequestText(path, readable_url(url).text, "identifier", "url", url))

    def _rest(self, path: Path, fields: Mapping[str, Json], known: frozenset[str], origin: Origin) -> None:
        definitions = Definitions()
        rest = {
            name: value
            for name, value in fields.items()
            if name not in known and not (name == "extra_content" and _is_signature(value))
        }
        definitions.read(path, rest)
        self._defined(path, definitions, origin)

    def _named(self, path: Path, fields: Iterable[str], origin: Origin) -> None:
        """Names of parameters that are not like those of any API."""
        telling = Definitions()
        for name in fields:
            if not _PARAMETER.fullmatch(name):
                telling.read(path, {name: None})
        self._defined(path, telling, origin)

    def _call(self, path: Path, function: Json, origin: Origin) -> None:
        if not isinstance(function, Mapping):
            return
        self._add((*path, "name"), function.get("name"), origin, "name")
        self._add((*path, "input"), function.get("input"), origin)
        if not function.keys() <= _FUNCTION:
            self._rest(path, function, _FUNCTION, origin)
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            self._described((*path, "arguments"), arguments, origin, prose=True)
        if not isinstance(arguments, str) or not arguments:
            return
        try:
            self._document((*path, "arguments"), parsed(arguments), origin)
        except ValueError:
            self._add((*path, "arguments"), unescaped(arguments), origin)

    def _document(self, path: Path, document: Json, origin: Origin) -> None:
        text = "\n".join(leaf_text(value) for value in leaves(document))
        self.texts.append(RequestText(path, text, origin, "json", document))

    def _described(self, path: Path, value: Json, origin: Origin, *, prose: bool = False) -> None:
        if isinstance(value, str) and prose:
            self._add(path, value, origin)
        elif isinstance(value, str | Mapping | list):
            definitions = Definitions()
            definitions.read(path, value, prose=prose)
            self._defined(path, definitions, origin)

    def _defined(self, path: Path, definitions: Definitions, origin: Origin) -> None:
        for where, text in definitions.prose:
            self._add(where, text, origin)
        # Their paths are nowhere: what is fixed is never replaced.
        self._add((*path, "*names"), "\n".join(definitions.names), "identifier", "fixed")
        self._add((*path, "*spoken"), "\n".join(definitions.spoken), "identifier", "fixed")
        self._add((*path, "*sentences"), "\n".join(definitions.sentences), origin, "fixed")

    def _prompt(self, prompt: Json) -> None:
        if isinstance(prompt, str):
            self._add(("prompt",), prompt, "user")
            return
        for i, one in enumerate(prompt):
            self._add(("prompt", i), one, "user")
        if not all(isinstance(one, str) for one in prompt):
            self.unread.append("token_ids")


def _is_signature(extra: Json) -> bool:
    """Of a thought of Google's, which must not be changed (https://ai.google.dev/gemini-api/docs/openai)."""
    match extra:
        case {"google": {"thought_signature": str(signature), **google}, **rest} if not google and not rest:
            return _SIGNATURE.fullmatch(signature) is not None
    return False
