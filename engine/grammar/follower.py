"""One request's place in its grammar, and how much time that may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask
from numpy.typing import NDArray

from engine.core.sampling_params import Grammar
from engine.grammar.compiled import Compiled, Entry, matcher_of
from engine.grammar.language import plain

Bits = NDArray[np.int32]

SLOW = 0.002
"""Seconds from which a mask is computed apart from the others', which would have to wait for it."""

_FIRST = 0.25
"""Seconds that a grammar may take ahead: the first masks are the slow ones, as the lexer's states are made then."""

_EACH = 0.001
"""Seconds that each token adds to what is left of them. A token of JSON takes 0.005 to 0.05 ms."""

_PIECE = 64
"""Tokens that are consumed before other threads get their turn: the interpreter's lock is held meanwhile."""


class Follower:
    """Follows the request's own list of tokens, so that preemption costs it nothing.

    It shares a lexer with others that have the same grammar. One that has grown to its limit fails for all of them,
    which is nobody's fault: whoever meets that gets one of his own, once, and newcomers another (``Compiled.drop``).

    All methods but the constructor may take a while, and are called from one thread at a time.
    """

    def __init__(
        self, grammar: Grammar, compiled: Compiled, *, clock: Callable[[], float] = time.thread_time
    ) -> None:
        """``clock``: seconds that the calling thread was at work: what others did meanwhile is not counted."""
        self.failed: str | None = None
        """Why the answer cannot go on."""
        self.apart = True
        """Whether its next mask may be slow. The first may."""
        self.pending: tuple[int, list[int], Future[Bits]] | None = None
        """The last mask that was computed apart, or is on its way: after how many tokens, which guesses, the mask."""
        self.exhausted = False
        """Whether the lexer that it shares has come to its limit: ``revive`` it."""
        self._grammar = grammar
        self._compiled = compiled
        self._clock = clock
        self._entry: Entry | None = None
        self._matcher: LLMatcher | None = None
        self._consumed = 0
        self._allowance = _FIRST

    @property
    def busy(self) -> bool:
        """Whether a mask is on its way."""
        return self.pending is not None and not self.pending[2].done()

    def waits_for(self, answer: Sequence[int], draft_tokens: list[int]) -> bool:
        """Whether that mask is the one of this place."""
        return self.pending is not None and self.pending[:2] == (len(answer), draft_tokens)

    @property
    def matcher(self) -> LLMatcher:
        assert self._matcher is not None, "follow first"
        return self._matcher

    def follow(self, answer: Sequence[int], tokenizer: LLTokenizer) -> None:
        """``answer``: all tokens that were generated."""
        if self._matcher is None:
            # Not charged: others may have pushed it out of those that are compiled.
            self._entry = self._compiled.get(self._grammar, tokenizer)
            self._matcher = self._entry.matcher.deep_copy()
            self._consume(self._prefix(tokenizer))
        new = answer[self._consumed :]
        if new:
            with self._charged():
                self._consume(new)
            self._consumed += len(new)
            self._allowance = min(_FIRST, self._allowance + _EACH * len(new))
        self.look()

    def fill(self, bits: Bits, draft_tokens: Sequence[int]) -> None:
        """The masks after what was generated and after each of the guesses, up to one that is not allowed."""
        matcher, taken = self.matcher, 0
        with self._charged():
            for row in range(len(draft_tokens) + 1):
                fill_next_token_bitmask(matcher, bits, row)
                if row == len(draft_tokens) or not matcher.validate_tokens([draft_tokens[row]]):
                    break
                if not matcher.consume_token(draft_tokens[row]):
                    break
                taken += 1
            if taken:
                matcher.rollback(taken)
        self.look()

    def revive(self, answer: Sequence[int], tokenizer: LLTokenizer) -> None:
        """Goes on with a lexer of its own: if it fails again, it is the grammar or the answer that is too much.

        Not charged: it is not this request's doing.
        """
        if self._entry is not None:
            self._compiled.drop(self._grammar, self._entry)
        self._entry, self._matcher, self.exhausted = None, matcher_of(self._grammar, tokenizer), False
        self._consume([*self._prefix(tokenizer), *answer])
        self._consumed = len(answer)
        self.look()

    def worked(self, seconds: float) -> None:
        """Its matcher was at work elsewhere."""
        if self._entry is not None:
            self._compiled.worked(self._entry, seconds)

    def _consume(self, tokens: Sequence[int]) -> None:
        for start in range(0, len(tokens), _PIECE):
            if not self.matcher.consume_tokens(list(tokens[start : start + _PIECE])):
                return
            if len(tokens) > _PIECE:
                time.sleep(0)

    def _prefix(self, tokenizer: LLTokenizer) -> list[int]:
        return tokenizer.tokenize_str(self._grammar.prefix) if self._grammar.prefix else []

    @contextmanager
    def _charged(self) -> Iterator[None]:
        began = self._clock()
        yield
        seconds = self._clock() - began
        self.worked(seconds)
        self.apart = seconds > SLOW
        self._allowance -= seconds

    def look(self) -> None:
        """Sets ``failed`` or ``exhausted`` if there is a reason."""
        if self.failed is not None:
            return
        if self.matcher.is_error():
            error = self.matcher.get_error()
            if self._entry is not None and error.startswith("lexer error"):
                self.exhausted = True
            else:
                self.failed = plain(error)
        elif self._allowance < 0:
            most = f"{_EACH * 1000:g} ms a token"
            self.failed = f"to see what it allows next takes more than {most}, as with an ambiguous grammar"
