"""Texts in requests and events in Anthropic's dialect.

They are read wherever they are, in unknown kinds of blocks too; the names of fields tell which values are not text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gateway.errors import BadRequest
from gateway.guards.scanners.scanner import Origin
from gateway.guards.texts.paths import DEEPEST, Path
from gateway.types import Json

_OPAQUE = frozenset(
    {
        *("type", "id", "tool_use_id", "tool_id", "file_id", "container_id", "media_type", "signature"),
        *("cache_control", "caller", "url", "page_age", "error_code", "toolset_name", "retrieved_at"),
    }
)
"""Identifiers and the like, which must not be changed."""
_IDENTIFIER = re.compile(r"[\w.:/+=-]*|https?://\S*|[\w ,.:-]{0,24}", re.ASCII)
"""What these hold: keys, base64, addresses, dates. Anything else is read, whatever it is called."""
_OWN = re.compile(r"[a-z]{1,24}(?:_[a-z]{1,24}){0,3}", re.ASCII)
"""A field's name as this API's are, of few words; all others are read."""
_FETCHED = frozenset({"base64", "url", "file", "image"})
"""Sources that hold no text, or one that is not fetched yet."""
_IDS = frozenset({("id", "tool_use"), ("tool_use_id", "tool_result")})
"""Of a client's own tools; those of the provider's are its own."""
_CALLS = ("tool_use",)
_RESULTS = ("tool_result",)
_SETTINGS = frozenset(
    {
        *("model", "max_tokens", "stream", "stop_sequences", "temperature", "top_p", "top_k", "tool_choice"),
        *("thinking", "service_tier", "inference_geo", "speed", "cache_control", "container", "mcp_servers"),
        *("system", "messages", "tools", "betas", "anthropic_version", "user_profile_id", "workspace_id"),
        "output_config",
    }
)
"""A request's fields that the model does not see, or that are read separately."""


_TOOL_SETTINGS = frozenset(
    {
        *("type", "cache_control", "allowed_domains", "blocked_domains", "allowed_callers"),
        *("mcp_server_name", "configs", "default_config", "model"),
    }
)
"""A tool's fields that hold no prose."""


class Found(NamedTuple):
    """A text, or with ``arguments`` the arguments of a call, as JSON."""

    path: Path
    value: Json
    origin: Origin
    kind: str = "text"
    """``text``, ``name``, ``id``, ``url`` or ``arguments``; ``field`` for the name of a field that no API has,
    ``unread`` for content that is not text."""


def others(body: Mapping[str, Json]) -> list[str]:
    """The names of a request's fields that may hold texts beside the conversation."""
    return [name for name in body if name not in _SETTINGS]


def tools(body: Mapping[str, Json]) -> Iterator[tuple[Path, Json, bool]]:
    """The values in the definitions of tools, and whether each is a schema, or a name, most of which is no prose."""
    for i, tool in enumerate(body.get("tools") or ()):
        for name, value in tool.items():
            if name not in _TOOL_SETTINGS:
                yield ("tools", i, name), value, name == "name" or name.endswith("_schema")


def conversation(body: Mapping[str, Json]) -> Iterator[Found]:
    """The texts of the system prompt and the messages."""
    yield from _content(body.get("system"), ("system",), "system")
    for i, turn in enumerate(body["messages"]):
        role = turn.get("role")
        is_prefill = i == len(body["messages"]) - 1  # what the model is to go on with is its caller's
        origin: Origin = role if role == "system" or (role == "assistant" and not is_prefill) else "user"
        for name, value in turn.items():
            if name != "role" and not (name in _OPAQUE and _is_opaque(value)):
                yield from _content(value, ("messages", i, name), origin)


def texts(value: Json, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """All texts of an answer's block or delta."""
    for found in _content(value, path, "assistant"):
        if isinstance(found.value, str) and found.kind not in ("unread", "field"):
            yield found.path, found.value
        elif found.kind == "arguments":
            yield from leaves_of(found.value, found.path)


def leaves_of(value: Json, path: Path) -> Iterator[tuple[Path, str]]:
    """The texts of an object, such as a call's arguments."""
    if isinstance(value, str) and value:
        yield path, value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from leaves_of(one, (*path, name))
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from leaves_of(one, (*path, i))


def _content(value: Json, path: Path, origin: Origin) -> Iterator[Found]:
    if len(path) > DEEPEST:
        raise BadRequest(f"A message has more than {DEEPEST} levels.", param=str(path[0]))
    if isinstance(value, str):
        if value:
            yield Found(path, value, origin)
    elif isinstance(value, Mapping):
        yield from _block(value, path, origin)
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from _content(one, (*path, i), origin)


def _is_opaque(value: Json, deepest: int = 4) -> bool:
    if isinstance(value, str):
        return _IDENTIFIER.fullmatch(value) is not None
    if isinstance(value, Mapping):
        value = list(value.values())
    return not isinstance(value, list) or (deepest > 0 and all(_is_opaque(one, deepest - 1) for one in value))


def _block(block: Mapping[str, Json], path: Path, origin: Origin) -> Iterator[Found]:
    kind = block.get("type")
    kind = kind if isinstance(kind, str) else ""
    if kind.endswith(_RESULTS):
        origin = "tool"
    for name, value in block.items():
        at = (*path, name)
        if not _OWN.fullmatch(name):
            yield Found(path, name, origin, "field")
        if name == "input" and kind.endswith(_CALLS) and isinstance(value, Mapping):
            yield Found(at, value, origin, "arguments")
        elif name == "name" and kind.endswith(_CALLS):
            yield Found(at, value, origin, "name")
        elif name == "data" and (kind in _FETCHED or kind == "redacted_thinking"):
            yield Found(at, value, origin, "unread")
        elif not (name in _OPAQUE or name.startswith("encrypted_")) or not _is_opaque(value):
            yield from _content(value, at, origin)
        elif name in ("url", "file_id") and kind in _FETCHED:
            if name == "url":
                yield Found(at, value, origin, "url")
            yield Found(at, value, origin, "unread")
        elif (name, kind) in _IDS:
            yield Found(at, value, origin, "id")
