"""An answer whose target died halfway, gone on with by another so that the reader does not notice.

What a joint passes on joins what was sent before without a gap and without an overlap:

- ``Opening`` holds back what says nothing yet, so that a target that dies before its first word leaves no trace;
- ``Continuing`` follows one that was given the partial answer and goes on from its end;
- ``Splicing`` follows one that was asked afresh, and holds it back for as long as it repeats what was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from gateway.policy.schema import AnyBackend
from gateway.types import ChatRequest, Chunk, Json, Usage

CAPS = ("max_tokens", "max_completion_tokens")


class Deviated(Exception):
    """The new answer is another one than the one that was begun."""


class Sent:
    """What the caller has of an answer with one choice."""

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
        delta = chunk.delta
        if not delta:
            return
        text = delta.get("content")
        if text and isinstance(text, str):
            self._parts.append(text)
            self.tokens += 1
            if len(delta) == 1 and chunk.logprobs is None:
                return
        if chunk.logprobs is not None or not _is_plain(delta):
            self.plain = False


_THOUGHTS = frozenset({"reasoning", "reasoning_content", "signature", "redacted_thinking"})
"""What a model thinks before it answers: of no interest to one who has half the answer."""


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


def can_be_one(request: ChatRequest) -> bool:
    """Whether the answer has one choice only, so that there is one text to go on with."""
    many = (
        isinstance(request.prompt, list)
        and len(request.prompt) > 1
        and not isinstance(request.prompt[0], int)
    )
    return request.n == 1 and not many


def continued(request: ChatRequest, sent: Sent, backend: AnyBackend) -> tuple[ChatRequest, str] | None:
    """The request that asks ``backend`` to go on from what was sent, and the white space that it was not shown.

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
                return None  # chunks are not always tokens: whether that was all, only a fresh answer tells
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
        if native is not None:  # every dialect has this message in the same words
            body = {**native.body, "messages": [*native.body["messages"], begun]}
            native = replace(native, body=body)
        request = replace(request, messages=messages, params=params, continues=True, native=native)
    return request, text[len(shown) :]


def joined_usage(usage: Usage, before: int) -> Usage:
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


class Joint(Protocol):
    done: bool
    """From here on every chunk can be passed on as it is."""

    def feed(self, chunk: Chunk) -> Iterable[Chunk]:
        """What can be passed on now. Raises ``Deviated``."""
        ...

    def end(self) -> Iterable[Chunk]:
        """The answer is over: what is still held. Raises ``Deviated``."""
        ...


class Opening:
    """The start of an answer's first target."""

    def __init__(self) -> None:
        self.done = False
        self._held: list[Chunk] = []

    def feed(self, chunk: Chunk) -> Iterable[Chunk]:
        if says(chunk):
            self.done = True
            if not self._held:
                return (chunk,)
        self._held.append(chunk)
        return self.end() if self.done else ()

    def end(self) -> Iterable[Chunk]:
        held, self._held = self._held, []
        for chunk in held[:-1]:
            chunk.more = True
        return held


def says(chunk: Chunk) -> bool:
    """Whether it holds anything of an answer: its text, a call, its end; the role alone is nothing."""
    if chunk.finish_reason is not None or chunk.logprobs is not None:
        return True
    delta = chunk.delta
    return bool(delta) and any(value for name, value in delta.items() if name != "role")  # type: ignore[union-attr]


class Continuing:
    """``space`` was sent, but not shown to the new target, which may begin with it."""

    def __init__(self, space: str = "") -> None:
        self.done = False
        self._space = space

    def feed(self, chunk: Chunk) -> Iterable[Chunk]:
        text = _text(chunk)
        if text:
            repeated = _common(self._space, text)
            self._space = self._space[repeated:] if repeated == len(text) else ""
            self.done = not self._space
            text = text[repeated:]
        rest = _rest(chunk, text)
        if says(rest):
            self.done = True
        return (rest,) if says(rest) or rest.usage is not None else ()

    def end(self) -> Iterable[Chunk]:
        return ()


class Splicing:
    """``sent`` must come again before anything is passed on; after the answer's end (``finished``) nothing may."""

    def __init__(self, sent: str, *, finished: bool = False) -> None:
        self.done = False
        self._sent = sent
        self._finished = finished
        self._covered = 0

    def feed(self, chunk: Chunk) -> Iterable[Chunk]:
        if chunk.logprobs is not None or not _is_plain(chunk.delta or {}, _THOUGHTS):
            raise Deviated
        text = _text(chunk)
        left = len(self._sent) - self._covered
        if not text.startswith(self._sent[self._covered : self._covered + len(text)]):
            raise Deviated
        self._covered += min(len(text), left)
        rest = _rest(chunk, text[left:])
        if self._finished:
            if rest.delta:
                raise Deviated
            if chunk.finish_reason is not None:
                self._whole()
                rest = replace(rest, delta=None, finish_reason=None)
            return (rest,) if rest.usage is not None else ()
        if chunk.finish_reason is not None:
            self._whole()
        self.done = self._covered == len(self._sent)
        return (rest,) if says(rest) or rest.usage is not None else ()

    def end(self) -> Iterable[Chunk]:
        self._whole()
        return ()

    def _whole(self) -> None:
        if self._covered < len(self._sent):
            raise Deviated


def _text(chunk: Chunk) -> str:
    text = (chunk.delta or {}).get("content")
    return text if isinstance(text, str) else ""


_REPLACED = frozenset({"role", "content"}) | _THOUGHTS


def _rest(chunk: Chunk, text: str) -> Chunk:
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
