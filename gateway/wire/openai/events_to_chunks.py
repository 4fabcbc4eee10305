"""OpenAI's answers, whole or as events, to chunks: objects with ``choices`` and ``usage``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from gateway.deltas import SEALED_FIELDS
from gateway.types import Chunk, Json
from gateway.wire.openai.usage import read_usage

# "obfuscation" pads one event of OpenAI's, and means nothing in another.
_RARE = frozenset({"obfuscation", "native"})
_OURS = _RARE | {"choices", "usage", "object"}


def read_chunks(
    raw: Mapping[str, Json], delta: Callable[[Mapping[str, Json]], Mapping[str, Json]]
) -> list[Chunk]:
    """The chunks in one upstream body or event. Raises ``KeyError``, ``TypeError``, ``AttributeError`` on nonsense."""
    envelope = {**raw}
    choices = envelope.pop("choices") or ()
    usage = read_usage(envelope.pop("usage", None))
    envelope.pop("object", None)
    if not _RARE.isdisjoint(raw):
        envelope.pop("obfuscation", None)
        envelope.pop("native", None)
    chunks: list[Chunk] = []
    for i, choice in enumerate(choices):
        fields = delta(choice)
        if not _OWN.isdisjoint(fields):
            fields = {
                name: value for name, value in fields.items() if name not in _OWN or _is_sealed(name, value)
            }
        index, reason, logprobs = choice.get("index", i), choice.get("finish_reason"), choice.get("logprobs")
        stop = _stop(choice) if reason is not None and "stop_reason" in choice else None
        more = None if choice.keys() <= _CHOICE else _beside(choice)
        chunk = Chunk(index, fields, reason, stop, logprobs, None, envelope, choice=more)
        # A text, as nearly all answers and their pieces are, needs no closer look.
        if (
            type(fields.get("content")) is not str
            or type(index) is not int
            or not (reason is None or type(reason) is str)
            or logprobs is not None
            or "tool_calls" in fields
        ):
            _check(chunk)
        chunks.append(chunk)
    if usage is not None:
        if chunks:
            chunks[-1].usage = usage
        else:
            chunks.append(Chunk(usage=usage, envelope=envelope))
    return chunks


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
