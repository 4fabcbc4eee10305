"""An answer whose target failed halfway, continued by another so that the reader does not notice.

What a filter passes on follows what was sent before without a gap and without an overlap:

- ``OpeningFilter`` holds back chunks without content: a target that fails before its first token leaves no trace;
- ``ContinuationFilter`` follows a target that was given the partial answer and continues it;
- ``ReplayFilter`` follows one that was asked for the whole answer, and drops what repeats what was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from gateway.deltas import THINKING_FIELDS, has_content
from gateway.policy.schema import AnyBackend
from gateway.types import ChatRequest, Chunk, Json, Native, Usage

CAPS = ("max_tokens", "max_completion_tokens")


class AnswerDiverged(Exception):
    """The new answer does not begin with what was sent."""


class SentAnswer:
    """What the caller has of an answer with a single choice."""

    __slots__ = ("_parts", "finished", "plain", "tokens")

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.plain = True
        """Text, and nothing else."""
        self.tokens = 0
        """Chunks with text; servers send a token in each, if not more."""
        self.finished = False

    @property
    def text(self) -> str:
        if len(self._parts) > 1:
            self._parts[:] = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def add(self, chunk: Chunk) -> None:
        if chunk.finish_reason is not None:
            self.finished = True
        if delta := chunk.delta:
            if isinstance(text := delta.get("content"), str):
                self.add_text(text)
            self.plain = self.plain and chunk.logprobs is None and _is_plain(delta)

    def add_text(self, text: str) -> None:
        """As ``add``, for a chunk with nothing but a piece of the answer's text."""
        if text:
            self._parts.append(text)
            self.tokens += 1

    def add_texts(self, texts: Sequence[str]) -> None:
        """As ``add_text``, for several, none of which is empty."""
        self._parts += texts
        self.tokens += len(texts)


def _is_plain(delta: Mapping[str, Json], besides: frozenset[str] = frozenset()) -> bool:
    """Whether it holds text at most, next to the role and ``besides``."""
    for name, value in delta.items():
        if (
            value
            and name != "role"
            and name not in besides
            and not (name == "content" and isinstance(value, str))
        ):
            return False
    return True


def continuation_request(
    request: ChatRequest, sent: SentAnswer, backend: AnyBackend
) -> tuple[ChatRequest, str] | None:
    """The request that asks ``backend`` to continue what was sent, and the white space that it was not given.

    None if it cannot be asked that way. Its cap on tokens is lowered by those that were used.
    """
    text = shown = sent.text
    if not backend.continues or sent.finished:
        return None
    if getattr(backend, "kind", "") == "anthropic":
        shown = text.rstrip()  # it refuses a partial answer that ends in white space
    params = dict(request.params)
    for cap in CAPS:
        if params.get(cap) is not None:
            params[cap] -= sent.tokens
            if params[cap] < 1:
                return None  # chunks are not always tokens: only a fresh answer shows whether that was all
    if not shown or (params.get("response_format") or {}).get("type", "text") != "text":
        return None  # a grammar would begin anew in the middle of its text
    if request.messages is None:
        if not isinstance(request.prompt, str) or params.get("suffix") or params.get("echo"):
            return None
        request = replace(request, prompt=request.prompt + shown, params=params, continues=True)
    else:
        if request.messages[-1].get("role") == "assistant":
            return None  # the caller's own partial answer: two in a row read differently everywhere
        begun = {"role": "assistant", "content": shown}
        messages = (*request.messages, begun)
        native = request.native
        if native is not None:
            native = replace(native, body=_continued(native, shown))
        request = replace(request, messages=messages, params=params, continues=True, native=native)
    return request, text[len(shown) :]


def _continued(native: Native, shown: str) -> dict[str, Json]:
    """The caller's own body, with what of the answer was shown."""
    if native.dialect == "gemini":
        begun: dict[str, Json] = {"role": "model", "parts": [{"text": shown}]}
        return {**native.body, "contents": [*native.body["contents"], begun]}
    begun = {"role": "assistant", "content": shown}
    return {**native.body, "messages": [*native.body["messages"], begun]}


def whole_usage(usage: Usage, before: int) -> Usage:
    """The whole answer's, from that of its continuation, whose prompt held ``before`` tokens of the answer."""
    before = min(before, usage.prompt)
    prompt = usage.prompt - before
    cached = min(usage.cached, prompt)
    written = min(usage.cache_write, prompt - cached)
    return replace(
        usage,
        prompt=prompt,
        completion=usage.completion + before,
        cached=cached,
        cache_write=written,
        cache_write_1h=min(usage.cache_write_1h, written),
    )


class AnswerFilter(Protocol):
    passthrough: bool
    """From here on every chunk can be passed on as it is."""

    def feed(self, chunk: Chunk) -> Iterable[Chunk]:
        """What can be passed on now. Raises ``AnswerDiverged``."""
        ...

    def end(self) -> Iterable[Chunk]:
        """The answer is over: what is still held. Raises ``AnswerDiverged``."""
        ...


class OpeningFilter:
    """For the first target of an answer."""

    def __init__(self) -> None:
        self.passthrough = False
        self._held: list[Chunk] = []

    def opens(self, chunk: Chunk) -> bool:
        """Whether everything can be passed on from ``chunk`` on, and nothing is held."""
        self.passthrough = not self._held and has_content(chunk)
        return self.passthrough

    def feed(self, chunk: Chunk) -> Iterable[Chunk]:
        if has_content(chunk):
            self.passthrough = True
            if not self._held:
                return (chunk,)
        self._held.append(chunk)
        return self.end() if self.passthrough else ()

    def end(self) -> Iterable[Chunk]:
        held, self._held = self._held, []
        for chunk in held[:-1]:
            chunk.more = True
        return held


class ContinuationFilter:
    """``space`` was sent, but not given to the new target, which may begin with it."""

    def __init__(self, space: str = "") -> None:
        self.passthrough = False
        self._space = space

    def feed(self, chunk: Chunk) -> Iterable[Chunk]:
        text = _text(chunk)
        if text:
            repeated = _common(self._space, text)
            self._space = self._space[repeated:] if repeated == len(text) else ""
            self.passthrough = not self._space
            text = text[repeated:]
        rest = _remainder(chunk, text)
        if has_content(rest):
            self.passthrough = True
        return (rest,) if has_content(rest) or rest.usage is not None else ()

    def end(self) -> Iterable[Chunk]:
        return ()


class ReplayFilter:
    """``sent`` must be repeated before anything passes; after the answer's end (``finished``) nothing may follow."""

    def __init__(self, sent: str, *, finished: bool = False) -> None:
        self.passthrough = False
        self._sent = sent
        self._finished = finished
        self._covered = 0

    def feed(self, chunk: Chunk) -> Iterable[Chunk]:
        if chunk.logprobs is not None or not _is_plain(chunk.delta or {}, THINKING_FIELDS):
            raise AnswerDiverged
        text = _text(chunk)
        left = len(self._sent) - self._covered
        if not text.startswith(self._sent[self._covered : self._covered + len(text)]):
            raise AnswerDiverged
        self._covered += min(len(text), left)
        rest = _remainder(chunk, text[left:])
        if self._finished:
            if rest.delta:
                raise AnswerDiverged
            if chunk.finish_reason is not None:
                self._whole()
                rest = replace(rest, delta=None, finish_reason=None)
            return (rest,) if rest.usage is not None else ()
        if chunk.finish_reason is not None:
            self._whole()
        self.passthrough = self._covered == len(self._sent)
        return (rest,) if has_content(rest) or rest.usage is not None else ()

    def end(self) -> Iterable[Chunk]:
        self._whole()
        return ()

    def _whole(self) -> None:
        if self._covered < len(self._sent):
            raise AnswerDiverged


def _text(chunk: Chunk) -> str:
    text = (chunk.delta or {}).get("content")
    return text if isinstance(text, str) else ""


_REPLACED = THINKING_FIELDS | {"role", "content"}


def _remainder(chunk: Chunk, text: str) -> Chunk:
    """``chunk`` with the rest of its text: what opens an answer has been sent before."""
    if chunk.delta is None:
        return chunk
    delta = {name: value for name, value in chunk.delta.items() if value and name not in _REPLACED}
    if text:
        delta["content"] = text
    if not delta and chunk.finish_reason is None:
        return replace(chunk, delta=None)
    return replace(chunk, delta=delta)


def _common(a: str, b: str) -> int:
    """The length of the longest common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
