"""OpenAI's answers, whole or as events, to chunks: objects with ``choices`` and ``usage``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import orjson

from gateway.deltas import SEALED_FIELDS
from gateway.types import Chunk, Json
from gateway.wire.openai.usage import read_usage

# "obfuscation" pads one event of OpenAI's, and means nothing in another.
_OURS = frozenset({"choices", "usage", "object", "obfuscation", "native"})


def read_chunks(
    raw: Mapping[str, Json], delta: Callable[[Mapping[str, Json]], Mapping[str, Json]]
) -> Iterator[Chunk]:
    """The chunks in one upstream body or event. Raises ``KeyError``, ``TypeError``, ``AttributeError`` on nonsense."""
    envelope = {name: value for name, value in raw.items() if name not in _OURS}
    usage = read_usage(raw.get("usage"))
    choices = raw["choices"] or ()
    last = len(choices) - 1
    for i, choice in enumerate(choices):
        fields = delta(choice)
        if not _OWN.isdisjoint(fields):
            fields = {
                name: value for name, value in fields.items() if name not in _OWN or _is_sealed(name, value)
            }
        reason, logprobs = choice.get("finish_reason"), choice.get("logprobs")
        more = None if choice.keys() <= _CHOICE else _beside(choice)
        chunk = Chunk(
            choice.get("index", i),
            fields,
            reason,
            _stop(choice) if reason is not None else None,
            logprobs,
            usage if i == last else None,
            envelope,
            choice=more,
        )
        # A piece of text and nothing else, as nearly all events of a stream are, needs no closer look.
        if (
            reason is not None
            or logprobs is not None
            or len(fields) != 1
            or type(fields.get("content")) is not str
            or type(chunk.index) is not int
        ):
            _check(chunk)
        yield chunk
    if not choices and usage is not None:
        yield Chunk(usage=usage, envelope=envelope)


_CHOICE = frozenset({"index", "delta", "message", "text", "finish_reason", "logprobs", "stop_reason"})
"""A choice's fields that are read."""


def _beside(choice: Mapping[str, Json]) -> Mapping[str, Json]:
    """What a provider adds to a choice, for the caller as it is."""
    return {name: value for name, value in choice.items() if name not in _CHOICE}


def own_fields(raw: Mapping[str, Json]) -> dict[str, Json]:
    """What a provider adds to a body or an event, beside what all of them have."""
    return {name: value for name, value in raw.items() if name not in _OURS and name not in _EVERYWHERE}


_EVERYWHERE = frozenset({"id", "created", "system_fingerprint"})
_OWN = SEALED_FIELDS | {"native"}
"""Names that mean something among chunks, and in no answer of this shape, or nothing but a text."""


def _is_sealed(name: str, value: Json) -> bool:
    return name != "native" and isinstance(value, str)


def _check(chunk: Chunk) -> None:
    """What stages may rely on: raises ``TypeError`` here, where it is one bad event, and not in their midst."""
    # A class pattern costs more than these, and this runs for every token.
    delta = chunk.delta
    content, calls = (
        (delta.get("content"), delta.get("tool_calls")) if isinstance(delta, dict) else (None, ...)
    )
    if (
        type(chunk.index) is not int
        or not (chunk.finish_reason is None or isinstance(chunk.finish_reason, str))
        or not (chunk.logprobs is None or isinstance(chunk.logprobs, dict))
        or not (content is None or isinstance(content, str | list))
        or not (calls is None or (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)))
    ):
        raise TypeError("not a choice")
    for i, call in enumerate(calls or ()):
        if type(call.get("index", i)) is not int:
            call["index"] = i  # some servers write null
        if not isinstance(call.get("id"), str | None):
            call["id"] = str(call["id"])
        function = call.get("function")
        if isinstance(function, dict):
            if not isinstance(function.get("name"), str | None):
                raise TypeError("not a name")
            if not isinstance(function.get("arguments"), str | None):
                function["arguments"] = orjson.dumps(
                    function["arguments"]
                ).decode()  # as Ollama's own API has them
        elif function is not None:
            raise TypeError("not a function")


def _stop(choice: Mapping[str, Json]) -> str | int | None:
    """What ended a choice, as vLLM and the bundled engine report it."""
    stop = choice.get("stop_reason")
    return stop if isinstance(stop, str | int) else None
