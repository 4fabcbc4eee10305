"""Draft tokens from a grammar: what it forces, and how answers are laid out where it leaves that open.

A property's name is forced once its quote is open, but not how it is cut into tokens, and between name and value there
may be white space. So these are proposals: the next step samples at each of them, under the grammar's mask, and keeps
those that it would have sampled anyway (``engine/worker/rejection_sampler.py``). Answers are the same without them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer

Key = tuple[bytes, int]
"""What is forced, of which no token is certain, and the token before it."""

_MAX_HABITS = 512
_NEXT = 3
"""Tokens remembered at each key."""
_LAYOUT = frozenset(b'":,{}[] \t\r\n')


class Habits:
    """Tokens of JSON's layout (quotes, colons, white space …) by what they came after, the most recent first."""

    def __init__(self) -> None:
        self._after: OrderedDict[Key, list[int]] = OrderedDict()

    def learn(self, key: Key, token: int) -> None:
        tokens = self._after.setdefault(key, [])
        if token in tokens:
            tokens.remove(token)
        tokens.insert(0, token)
        del tokens[_NEXT:]
        self._after.move_to_end(key)
        if len(self._after) > _MAX_HABITS:
            self._after.popitem(last=False)

    def after(self, key: Key) -> Sequence[int]:
        return self._after.get(key, ())


class Forecast:
    """One request's proposals, and what comes of them."""

    def __init__(self) -> None:
        self._asked: list[tuple[int, Key]] = []
        """Where habits were asked: the length of the answer before it, with drafts, and the key."""
        self._proposed: list[int] = []
        self._start = 0
        """The length of the answer that the proposed tokens follow."""

    def propose(
        self, matcher: LLMatcher, answer: Sequence[int], limit: int, tokenizer: LLTokenizer, habits: Habits
    ) -> list[int]:
        """``matcher`` has consumed ``answer``; it is a copy, and of no use after the call."""
        self._learn(answer, tokenizer, habits)
        self._start, self._asked = len(answer), []
        found: list[int] = []
        while len(found) < limit:
            last = found[-1] if found else answer[-1]
            matcher.compute_ff_bytes()  # a copy knows of no forced tokens before
            tokens = matcher.compute_ff_tokens()[: limit - len(found)]
            if not tokens and (key := _key(matcher, last, tokenizer)):
                self._asked.append((len(answer) + len(found), key))
                tokens = next(([one] for one in habits.after(key) if matcher.validate_tokens([one])), [])
            if (
                not tokens
                or matcher.validate_tokens(tokens) < len(tokens)
                or not matcher.consume_tokens(tokens)
            ):
                break
            found += tokens
        self._proposed = found
        return found

    def _learn(self, answer: Sequence[int], tokenizer: LLTokenizer, habits: Habits) -> None:
        """From what came where habits were asked, as far as the proposed tokens before it did."""
        for length, key in self._asked:
            before = self._proposed[: length - self._start]
            if length >= len(answer) or list(answer[self._start : length]) != before:
                break
            if _is_layout(tokenizer, answer[length]):
                habits.learn(key, answer[length])


def _key(matcher: LLMatcher, last: int, tokenizer: LLTokenizer) -> Key | None:
    """``None`` within texts and numbers, which have no habits."""
    if forced := matcher.compute_ff_bytes():
        return forced, -1
    return (b"", last) if _is_layout(tokenizer, last) else None


def _is_layout(tokenizer: LLTokenizer, token: int) -> bool:
    return _LAYOUT.issuperset(tokenizer.decode_bytes([token]))
