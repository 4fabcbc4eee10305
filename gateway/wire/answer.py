"""An answer on the wire, for every dialect of OpenAI's shape: an object with ``choices`` and ``usage``.

Upstream bodies become chunks here; chunks become one JSON body or server-sent events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import orjson

from gateway.errors import GatewayError
from gateway.policy.schema.limits import Limits
from gateway.types import Call, Candidate, ChatRequest, Chunk, Json, Usage
from gateway.wire import sse
from gateway.wire.counts import count, is_count
from gateway.wire.openai_errors import error_body
from gateway.wire.thoughts import Thoughts


@dataclass(slots=True)
class Choice:
    """All that was said of one choice, joined."""

    delta: dict[str, Json] = field(default_factory=dict)
    logprobs: dict[str, Json] | None = None
    finish_reason: str | None = None
    stop: str | int | None = None
    thoughts: Thoughts = field(default_factory=Thoughts)


class Dialect(Protocol):
    """What a dialect's module offers; the modules themselves are the implementations."""

    PATH: str
    """Below an upstream's base URL."""
    OBJECT: str
    CHUNK_OBJECT: str
    ID_PREFIX: str

    def read_request(self, data: bytes, limits: Limits) -> ChatRequest: ...
    def write_request(self, request: ChatRequest, model: str) -> dict[str, Json]: ...
    def read_answer(self, raw: Mapping[str, Json]) -> Iterator[Chunk]: ...
    def read_event(self, raw: Mapping[str, Json]) -> Iterator[Chunk]: ...
    def whole_choice(self, index: int, choice: Choice) -> dict[str, Json]: ...
    def event_choice(self, chunk: Chunk) -> dict[str, Json]: ...


# "obfuscation" pads one event of OpenAI's, and means nothing in another.
_OURS = frozenset({"choices", "usage", "object", "model", "obfuscation", "native"})


def chunks(
    raw: Mapping[str, Json], delta: Callable[[Mapping[str, Json]], Mapping[str, Json]]
) -> Iterator[Chunk]:
    """The chunks in one upstream body or event. Raises ``KeyError``, ``TypeError``, ``AttributeError`` on nonsense."""
    envelope = {name: value for name, value in raw.items() if name not in _OURS}
    usage = read_usage(raw.get("usage"))
    choices = raw["choices"] or ()
    last = len(choices) - 1
    for i, choice in enumerate(choices):
        said = delta(choice)
        if not _OWN.isdisjoint(said):
            said = {
                name: value for name, value in said.items() if name not in _OWN or _is_sealed(name, value)
            }
        chunk = Chunk(
            index=choice.get("index", i),
            delta=said,
            finish_reason=choice.get("finish_reason"),
            stop=_stop(choice),
            logprobs=choice.get("logprobs"),
            usage=usage if i == last else None,
            envelope=envelope,
        )
        _check(chunk)
        yield chunk
    if not choices and usage is not None:
        yield Chunk(usage=usage, envelope=envelope)


_OWN = frozenset({"native", "signature", "redacted_thinking"})
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
    for place, call in enumerate(calls or ()):
        if type(call.get("index", place)) is not int:
            call["index"] = place  # some servers write null
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
    """What ended a choice, as vLLM and the bundled engine tell it."""
    stop = choice.get("stop_reason")
    return stop if isinstance(stop, str | int) else None


def read_usage(raw: Json) -> Usage | None:
    """The usage in an upstream's words; a detail that is no count of tokens is taken for 0.

    None where there is none, or none that can be believed: the gateway then counts by itself.
    """
    if not isinstance(raw, dict) or not raw:
        return None
    if not (is_count(raw, "prompt_tokens") and is_count(raw, "completion_tokens")):
        return None
    read, spoken = raw.get("prompt_tokens_details"), raw.get("completion_tokens_details")
    prompt, completion = count(raw, "prompt_tokens"), count(raw, "completion_tokens")
    reasoning = count(spoken, "reasoning_tokens") if spoken else 0
    if (beyond := count(raw, "total_tokens") - prompt - completion) > 0:
        # xAI and Gemini leave thoughts, which they bill, out of the completion; others tell nothing but the total.
        if prompt or completion:
            completion, reasoning = completion + beyond, max(reasoning, beyond)
        else:
            prompt = beyond
    usage = Usage(
        prompt=prompt,
        completion=completion,
        cached=count(read, "cached_tokens") if read else 0,
        cache_write=count(read, "cache_write_tokens") if read else 0,
        reasoning=reasoning,
    )
    return usage if usage.believable else None


def write_usage(usage: Usage) -> dict[str, Json]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached,
            # OpenRouter's name for it; OpenAI's own API has no such thing.
            **({"cache_write_tokens": usage.cache_write} if usage.cache_write else {}),
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


class Whole:
    """Collects a stream of chunks into the one JSON body of a non-streaming answer."""

    def __init__(self, dialect: Dialect, call: Call) -> None:
        self._dialect = dialect
        self._call = call
        self._choices: dict[int, Choice] = {}
        self._usage: Usage | None = None
        self._envelope: dict[str, Json] = {}
        self._revocation: Mapping[str, Json] | None = None

    def add(self, chunk: Chunk) -> None:
        if chunk.envelope:
            self._envelope.update(chunk.envelope)
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.revocation is not None:
            self._revocation = chunk.revocation
        if chunk.delta is None:
            return
        choice = self._choices.get(chunk.index)
        if choice is None:
            choice = self._choices[chunk.index] = Choice()
        join_delta(choice.delta, choice.thoughts.feed(chunk.delta))
        if chunk.logprobs:
            choice.logprobs = choice.logprobs or {}
            join_lists(choice.logprobs, chunk.logprobs)
        choice.finish_reason = chunk.finish_reason or choice.finish_reason
        choice.stop = chunk.stop if chunk.finish_reason else choice.stop

    def body(self) -> bytes:
        for choice in self._choices.values():
            choice.delta = joined(choice.delta)
        return orjson.dumps(
            {
                **_head(self._envelope, self._dialect.OBJECT, self._dialect.ID_PREFIX, self._call),
                "choices": [
                    self._dialect.whole_choice(index, self._choices[index]) for index in sorted(self._choices)
                ],
                **({} if self._usage is None else {"usage": write_usage(self._usage)}),
                **({} if self._revocation is None else {"tollgate": self._revocation}),
            }
        )


_SHARED = frozenset({"id", "created", "system_fingerprint"})
"""Fields of a stream that are the same in all its events."""


class Events:
    """Writes chunks as server-sent events. With ``include_usage`` an event at the end tells it, the rest null."""

    def __init__(self, dialect: Dialect, call: Call) -> None:
        self._dialect = dialect
        self._call = call
        self._usage: Usage | None = None
        self._tail = b'],"usage":null}\n\n' if call.request.include_usage else b"]}\n\n"
        self._start = b""
        self._shared: dict[str, Json] = {}
        self._candidate: Candidate | None = None
        self._thoughts: dict[int, Thoughts] = {}

    def event(self, chunk: Chunk) -> bytes:
        """Empty when the chunk holds nothing for the caller."""
        if chunk.usage is not None:
            self._usage = chunk.usage
        if not self._start or self._call.candidate is not self._candidate:
            self._open(chunk.envelope)
        if chunk.delta is None:
            return b""
        if len(chunk.delta) > 1 or "content" not in chunk.delta:
            thoughts = self._thoughts.setdefault(chunk.index, Thoughts())
            chunk = replace(chunk, delta=thoughts.feed(chunk.delta))
        event = self._start + orjson.dumps(self._dialect.event_choice(chunk)) + self._tail
        if chunk.revocation is None and (not chunk.envelope or chunk.envelope.keys() <= _SHARED):
            return event
        own = {name: value for name, value in chunk.envelope.items() if name not in _SHARED}
        if chunk.revocation is not None:
            own["tollgate"] = chunk.revocation
            event = self._told_usage() + event
        # Fields of this event alone, such as a provider's filter verdicts or timings, follow those that all share.
        return event[:-3] + b"," + orjson.dumps(own)[1:] + b"\n\n"

    def comment(self, text: str) -> bytes:
        return sse.comment(text)

    def end(self) -> bytes:
        """The usage, where it was asked for and is known, and the end mark."""
        return self._told_usage() + sse.DONE

    def _told_usage(self) -> bytes:
        """Once, and at the end; but where an answer was cut, that is the last that is said."""
        usage, self._usage = self._usage, None
        if not self._call.request.include_usage or usage is None:
            return b""
        return self._start + b'],"usage":' + orjson.dumps(write_usage(usage)) + b"}\n\n"

    def error(self, error: GatewayError) -> bytes:
        """Past the first byte an error can only be an event; without [DONE], so that nobody takes it for success."""
        return sse.event(error_body(error, self._call.request_id))

    def _open(self, envelope: Mapping[str, Json]) -> None:
        # What all events of an answer share is written out once; only the model can change, if another takes over.
        if not self._shared:
            self._shared = {name: value for name, value in envelope.items() if name in _SHARED}
            self._shared.setdefault("created", int(time.time()))
        self._candidate = self._call.candidate
        head = _head(self._shared, self._dialect.CHUNK_OBJECT, self._dialect.ID_PREFIX, self._call)
        self._start = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['


_FOREIGN_ID = "msg_"
"""How an id of Anthropic's begins. Other servers' are kept as they are: they are what to ask those servers by."""


def _head(envelope: Mapping[str, Json], kind: str, prefix: str, call: Call) -> dict[str, Json]:
    told = envelope.get("id")
    ours = not isinstance(told, str) or not told or told.startswith(_FOREIGN_ID)
    return {
        "id": prefix + call.request_id if ours else told,
        "created": int(time.time()),
        **{name: value for name, value in envelope.items() if name != "id"},
        "object": kind,
        "model": call.candidate.model if call.candidate else call.model,
    }


_PIECES = frozenset({"content", "refusal", "reasoning_content", "reasoning", "arguments"})
_NESTED = frozenset({"function", "function_call"})


class _Text(list[str]):
    """A text in the pieces in which it came: to join it with each would take time in the square of their number."""


def join_delta(whole: dict[str, Json], delta: Mapping[str, Json]) -> None:
    """Add a delta to what was said before: texts and lists grow, tool calls are matched by index, the rest is replaced.

    ``joined`` makes of it what can be written.
    """
    for name, value in delta.items():
        if name in _PIECES and isinstance(value, str):
            known = whole.get(name)
            if isinstance(known, _Text):
                known.append(value)
            else:
                whole[name] = _Text([value])
        elif name == "tool_calls" and isinstance(value, list):
            _join_tool_calls(whole.setdefault("tool_calls", []), value)
        elif isinstance(value, list) and not isinstance(whole.get(name), _Text):
            _extend(whole, name, value)  # annotations, images, signed thoughts
        elif name in _NESTED and isinstance(value, Mapping):
            join_delta(whole.setdefault(name, {}), value)
        elif value or name not in whole:  # some servers repeat "id" and "name" as empty ones
            whole[name] = value


def joined(whole: Mapping[str, Json]) -> dict[str, Json]:
    """What ``join_delta`` has made, with its texts in one piece."""
    return {name: _joined(name, value) for name, value in whole.items()}


def _joined(name: str, value: Json) -> Json:
    if isinstance(value, _Text):
        return "".join(value)
    if name == "tool_calls" and isinstance(value, list):
        return [joined(call) for call in value]
    return joined(value) if name in _NESTED and isinstance(value, Mapping) else value


def _join_tool_calls(whole: list[dict[str, Json]], pieces: list[Mapping[str, Json]]) -> None:
    if len(pieces) == 1 and whole and whole[-1].get("index") == pieces[0].get("index") is not None:
        join_delta(whole[-1], pieces[0])
        return
    by_index = {call["index"]: call for call in reversed(whole) if "index" in call}
    for piece in pieces:
        known = by_index.get(piece.get("index"))
        if known is None:
            known = {}
            whole.append(known)
            if "index" in piece:
                by_index[piece["index"]] = known
        join_delta(known, piece)


def join_lists(whole: dict[str, Json], more: Mapping[str, Any]) -> None:
    """Log-probabilities: lists under the same name follow one another."""
    for name, value in more.items():
        if isinstance(value, list):
            _extend(whole, name, value)
        else:
            whole[name] = value


def _extend(whole: dict[str, Json], name: str, more: list[Json]) -> None:
    known = whole.get(name)
    if not isinstance(known, list):
        known = whole[name] = []
    known += more
