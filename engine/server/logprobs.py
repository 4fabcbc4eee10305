"""Logprobs in step with the text: a token's are sent once all of its text is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.core.logprobs import TokenLogprobs
from engine.server.detokenizer import Detokenizer
from engine.server.tokenizer import Tokenizer

_LOWEST = -9999.0
"""In place of minus infinity, which JSON cannot express; the same as in OpenAI's API."""


@dataclass(frozen=True, slots=True)
class DecodedToken:
    """A token as text, and its logprob."""

    text: str
    """``bytes:\\xe2\\x82`` for one that is not a whole character, so that different tokens differ."""
    bytes: bytes | None
    """Its part of the text; ``None`` for a special token, which has none."""
    logprob: float | None
    """None for the first token of a prompt, which follows nothing."""


@dataclass(frozen=True, slots=True)
class DecodedLogprobs:
    """A token of the answer. Joined, their ``bytes`` are the bytes of the answer."""

    chosen: DecodedToken
    top: list[DecodedToken]
    """The most likely ones, best first."""
    offset: int
    """Characters of the answer before it."""


class LogprobBuffer:
    """Holds back each token's logprobs as long as some of its text is held back.

    Where a stop string cuts the answer, they cover the tokens of the text that remains.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._certain = 0
        """Characters that the detokenizer has emitted."""
        self._open: list[DecodedLogprobs] = []
        """Tokens whose text is not final yet: a part of a character, or none at all."""
        self._closed: deque[tuple[int, DecodedLogprobs]] = deque()
        """Tokens and where their text ends."""
        self._first = not context

    def push(self, token: TokenLogprobs, text: str) -> None:
        """``text`` is what has become final with this token."""
        top = [self._decoded(other, logprob) for other, logprob in token.top]
        self._push(self._decoded(token.token, token.logprob), top, text)

    def begin(self, token: int, text: str) -> None:
        """As ``push``, for the first token of a prompt."""
        self._push(self._decoded(token, None), [], text)

    def _push(self, chosen: DecodedToken, top: list[DecodedToken], text: str) -> None:
        self._first = self._first and chosen.bytes is None
        self._open.append(DecodedLogprobs(chosen, top, self._certain))
        if text:
            self._certain += len(text)
            self._closed.extend((self._certain, entry) for entry in self._open)
            self._open.clear()

    def release(self, emitted: int) -> list[DecodedLogprobs]:
        """Tokens whose text lies within the first ``emitted`` characters of the answer."""
        found = []
        while self._closed and self._closed[0][0] <= emitted:
            found.append(self._closed.popleft()[1])
        return found

    def cut(self, length: int) -> list[DecodedLogprobs]:
        """The rest of an answer that is cut after ``length`` characters."""
        return [entry for entry in self._rest() if entry.offset < length]

    def finish(self) -> list[DecodedLogprobs]:
        """The rest of an answer that ends by itself."""
        return self._rest()

    def _rest(self) -> list[DecodedLogprobs]:
        rest = [entry for _, entry in self._closed] + self._open
        self._closed.clear()
        self._open = []
        return rest

    def _decoded(self, token: int, logprob: float | None) -> DecodedToken:
        value = self._tokenizer.bytes_of(token)
        logprob = None if logprob is None else max(logprob, _LOWEST)
        if value is None:
            return DecodedToken(self._tokenizer.name_of(token), None, logprob)
        if self._first and value[:1] == b" " and self._tokenizer.decode([token])[:1] != " ":
            # Some tokenizers add a space before the first word of a text, and remove it when they decode.
            value = value[1:]
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in value)
        return DecodedToken(text, value, logprob)


def decoded_prompt_logprobs(
    tokenizer: Tokenizer, prompt: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> list[DecodedLogprobs]:
    """For an echoed prompt; ``logprobs`` are those of all tokens but the first, which has none."""
    buffer = LogprobBuffer(tokenizer)
    detokenizer = Detokenizer(tokenizer.decode)
    buffer.begin(prompt[0], detokenizer.push(prompt[:1]))
    for token in logprobs:
        buffer.push(token, detokenizer.push([token.token]))
    return buffer.finish()


def shifted(entry: Sequence[DecodedLogprobs], characters: int) -> list[DecodedLogprobs]:
    """The same after a text of so many characters."""
    return [replace(one, offset=one.offset + characters) for one in entry]
