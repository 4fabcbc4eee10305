"""Texts in requests and answers in Google's dialect, as ``anthropic_texts`` has them in Anthropic's.

They are read wherever they are, in unknown kinds of parts too; the names of fields tell which values are not text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gateway.errors import BadRequest
from gateway.guards.scanners.scanner import Origin
from gateway.guards.texts.anthropic_texts import Found, leaves_of
from gateway.guards.texts.paths import DEEPEST, Path
from gateway.types import Json

_SETTINGS = frozenset({"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "model"})
"""A request's fields that are read separately, or hold names."""
_CONFIG = frozenset({"responseSchema", "responseJsonSchema", "_responseJsonSchema", "stopSequences"})
"""Of ``generationConfig``, what is read separately."""
_OPAQUE: Mapping[str, re.Pattern[str]] = {
    "thoughtSignature": re.compile(r"[\w+/=-]*", re.ASCII),
    "mimeType": re.compile(r"[\w.+-]+/[\w.+-]+(?:; ?[\w-]+=[\w.+-]+)*", re.ASCII),
    "role": re.compile("user|model|function|system"),
}
"""What must not be changed, and is read all the same where it is something else."""
_OWN = re.compile(r"[a-z]{1,24}(?:[A-Z][a-z]{0,23}){0,3}", re.ASCII)
"""A field's name as this API's are, of few words; all others are read."""
_SCHEMAS = frozenset({"name", "parameters", "parametersJsonSchema", "response", "responseJsonSchema"})
"""Of a function, what is a schema, or a name, most of which is no prose."""


def others(body: Mapping[str, Json]) -> list[str]:
    """The names of a request's fields that may hold texts beside the conversation."""
    return [name for name in body if name not in _SETTINGS]


def named(body: Mapping[str, Json]) -> list[str]:
    """The names of a request's fields, and of its ``generationConfig``, that are not like those of this API."""
    given = body.get("generationConfig") or {}
    return [name for name in (*others(body), *given) if not _OWN.fullmatch(name)]


def config(body: Mapping[str, Json]) -> Iterator[tuple[Path, Json]]:
    """The settings of ``generationConfig`` and of ``toolConfig``, which may hold texts as well."""
    given = body.get("generationConfig") or {}
    for name, value in given.items():
        if name not in _CONFIG:
            yield ("generationConfig", name), value
    if "toolConfig" in body:
        yield ("toolConfig",), body["toolConfig"]


def forms(body: Mapping[str, Json]) -> Iterator[tuple[Path, Json]]:
    """The form of the answer that is asked for."""
    given = body.get("generationConfig") or {}
    for name in sorted(_CONFIG - {"stopSequences"}):
        if name in given:
            yield ("generationConfig", name), given[name]


def stops(body: Mapping[str, Json]) -> tuple[Path, Json]:
    given = body.get("generationConfig") or {}
    return ("generationConfig", "stopSequences"), given.get("stopSequences")


def tools(body: Mapping[str, Json]) -> Iterator[tuple[Path, Json, bool]]:
    """The values in the definitions of tools, and whether each is a schema, or a name."""
    for i, tool in enumerate(body.get("tools") or ()):
        for name, value in tool.items():
            if name != "functionDeclarations":
                yield ("tools", i, name), value, False
                continue
            for j, function in enumerate(value):
                for field, one in function.items():
                    yield ("tools", i, name, j, field), one, field in _SCHEMAS


def conversation(body: Mapping[str, Json]) -> Iterator[Found]:
    """The texts of the system prompt and the contents."""
    yield from _content(body.get("systemInstruction"), ("systemInstruction",), "system")
    contents = body["contents"]
    for i, content in enumerate(contents):
        # What the model is to go on with is its caller's.
        said = content.get("role") == "model" and i < len(contents) - 1
        yield from _content(content, ("contents", i), "assistant" if said else "user")


def texts(value: Json, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """All texts of a part of an answer."""
    for found in _content(value, path, "assistant"):
        if isinstance(found.value, str) and found.kind not in ("unread", "field"):
            yield found.path, found.value
        elif found.kind == "arguments":
            yield from leaves_of(found.value, found.path)


def _content(value: Json, path: Path, origin: Origin) -> Iterator[Found]:
    if len(path) > DEEPEST:
        raise BadRequest(f"A content has more than {DEEPEST} levels.", param=str(path[0]))
    if isinstance(value, str):
        if value:
            yield Found(path, value, origin)
    elif isinstance(value, Mapping):
        for name, one in value.items():
            if not _OWN.fullmatch(name):
                yield Found(path, name, origin, "field")
            yield from _field(name, one, (*path, name), origin)
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from _content(one, (*path, i), origin)


def _field(name: str, value: Json, path: Path, origin: Origin) -> Iterator[Found]:
    match name, value:
        case "inlineData", Mapping():
            yield Found((*path, "data"), value.get("data"), origin, "unread")
            yield from _beside(value, path, origin, "data")
        case "fileData", Mapping():
            yield Found((*path, "fileUri"), value.get("fileUri"), origin, "url")
            yield Found((*path, "fileUri"), value.get("fileUri"), origin, "unread")
            yield from _beside(value, path, origin, "fileUri")
        case "partMetadata", Mapping():
            yield Found(path, value, origin, "arguments")
        case "functionCall", Mapping():
            yield from _called(value, path, origin, "args")
        case "functionResponse", Mapping():
            yield from _called(value, path, "tool", "response")
        case _, str() if name in _OPAQUE and _OPAQUE[name].fullmatch(value):
            pass
        case _:
            yield from _content(value, path, origin)


def _beside(fields: Mapping[str, Json], path: Path, origin: Origin, read: str) -> Iterator[Found]:
    for name, value in fields.items():
        if name != read:
            yield from _field(name, value, (*path, name), origin)


def _called(call: Mapping[str, Json], path: Path, origin: Origin, given: str) -> Iterator[Found]:
    for name, value in call.items():
        at = (*path, name)
        if name == given and isinstance(value, Mapping):
            yield Found(at, value, origin, "arguments")
        elif name in ("name", "id"):
            yield Found(at, value, origin, name)
        else:
            yield from _content(value, at, origin)
