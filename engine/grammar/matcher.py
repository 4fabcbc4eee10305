"""One request's matcher: its state in its grammar, and the processor time that it may take."""

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
from engine.grammar.forecast import Forecast, Habits
from engine.grammar.grammar_cache import CompiledGrammar, GrammarCache, matcher_of
from engine.grammar.language import plain
from engine.grammar.watch import WHOLE, Begin

Bits = NDArray[np.int32]

SLOW_SECONDS = 0.002
"""Seconds from which a mask counts as slow: it is computed in a thread of its own, so that others need not wait."""

_INITIAL_BUDGET = 0.25
"""Seconds of processor time that a request starts with: the first masks are slow, as they build the lexer's states."""

_BUDGET_PER_TOKEN = 0.001
"""Seconds that each token adds to that budget. A token of JSON takes 0.005 to 0.05 ms."""

_TOKENS_A_TURN = 64
"""Tokens consumed before yielding to other threads: llguidance holds the interpreter's lock meanwhile."""


class GrammarMatcher:
    """Reads the request's own list of tokens, so that preemption costs it nothing.

    It shares a lexer with all requests of the same grammar. A lexer that has reached its limit fails for all of them,
    which is no fault of theirs: each is restarted once with a lexer of its own, and new requests get a new one
    (``GrammarCache.drop``).

    All methods but the constructor may be slow, and are called from one thread at a time.
    """

    def __init__(
        self,
        grammar: Grammar,
        compiled: GrammarCache,
        begin: Begin = WHOLE,
        *,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """``begin``: where in the answer the grammar begins. ``clock``: the calling thread's processor time in
        seconds."""
        self.failed: str | None = None
        """Why the answer cannot be continued."""
        self.slow = True
        """Whether its next mask may be slow; the first one may."""
        self.pending: tuple[int, list[int], Future[Bits]] | None = None
        """The last slow mask, done or in flight: the number of tokens before it, the draft tokens, the mask."""
        self.exhausted = False
        """Whether the shared lexer has reached its limit: then ``restart``."""
        self._grammar = grammar
        self._compiled = compiled
        self._clock = clock
        self._entry: CompiledGrammar | None = None
        self._matcher: LLMatcher | None = None
        self._begin = begin
        self._consumed = begin.tokens
        self._forecast: Forecast | None = Forecast()
        self._budget = _INITIAL_BUDGET

    @property
    def busy(self) -> bool:
        """Whether a slow mask is in flight."""
        return self.pending is not None and not self.pending[2].done()

    def has_pending(self, answer: Sequence[int], draft_tokens: list[int]) -> bool:
        """Whether the pending mask is the one for this state."""
        return self.pending is not None and self.pending[:2] == (len(answer), draft_tokens)

    @property
    def llmatcher(self) -> LLMatcher:
        assert self._matcher is not None, "advance first"
        return self._matcher

    def advance(self, answer: Sequence[int], tokenizer: LLTokenizer) -> None:
        """Consumes the new tokens of ``answer``, which has all that were generated."""
        if self._matcher is None:
            # Not charged: other requests may have evicted the compiled grammar.
            self._entry = self._compiled.get(self._grammar, tokenizer)
            self._matcher = self._entry.matcher.deep_copy()
            self._consume(self._prefix(tokenizer))
        new = answer[self._consumed :]
        if new:
            with self._charged():
                self._consume(new)
            self._consumed += len(new)
            self._budget = min(_INITIAL_BUDGET, self._budget + _BUDGET_PER_TOKEN * len(new))
        self.check()

    def fill(self, bits: Bits, draft_tokens: Sequence[int]) -> None:
        """The masks after the generated tokens and after each draft token, up to the first that is not allowed."""
        matcher, taken = self.llmatcher, 0
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
        self.check()

    def propose(self, answer: Sequence[int], limit: int, tokenizer: LLTokenizer, habits: Habits) -> list[int]:
        """Up to ``limit`` tokens that may come after ``answer``, which has all that were generated: those that the
        grammar forces and, between them, what answers mostly have there."""
        if self._forecast is None or self.exhausted or self.failed is not None:
            return []
        self.advance(answer, tokenizer)
        if self.exhausted or self.failed is not None:
            return []
        started = self._clock()
        # Of a copy: to ask what is forced fails in some states (before a token that is named as such), and a
        # matcher that has failed never recovers.
        matcher = self.llmatcher.deep_copy()
        drafts = self._forecast.propose(matcher, answer, limit, tokenizer, habits)
        if self._clock() - started > SLOW_SECONDS:
            # Nothing is charged for what is no part of the answer; what takes long is not asked again.
            self._forecast = None
        return [] if matcher.is_error() else drafts

    def restart(self, answer: Sequence[int], tokenizer: LLTokenizer) -> None:
        """Continues with a lexer of its own: if that fails too, the grammar or the answer is too complex. Not
        charged."""
        if self._entry is not None:
            self._compiled.drop(self._grammar, self._entry)
        self._entry, self._matcher, self.exhausted = None, matcher_of(self._grammar, tokenizer), False
        self._consume([*self._prefix(tokenizer), *answer[self._begin.tokens :]])
        self._consumed = len(answer)
        self.check()

    def charge(self, seconds: float) -> None:
        """Counts ``seconds`` of work on its matcher towards the compiled grammar."""
        if self._entry is not None:
            self._compiled.charge(self._entry, seconds)

    def _consume(self, tokens: Sequence[int]) -> None:
        for start in range(0, len(tokens), _TOKENS_A_TURN):
            if not self.llmatcher.consume_tokens(list(tokens[start : start + _TOKENS_A_TURN])):
                return
            if len(tokens) > _TOKENS_A_TURN:
                time.sleep(0)

    def _prefix(self, tokenizer: LLTokenizer) -> list[int]:
        if self._begin.text:
            return tokenizer.tokenize_bytes(self._begin.text)
        return tokenizer.tokenize_str(self._grammar.prefix) if self._grammar.prefix else []

    @contextmanager
    def _charged(self) -> Iterator[None]:
        started = self._clock()
        yield
        seconds = self._clock() - started
        self.charge(seconds)
        self.slow = seconds > SLOW_SECONDS
        self._budget -= seconds

    def check(self) -> None:
        """Sets ``failed`` or ``exhausted`` after an error, or if the time budget is used up."""
        if self.failed is not None:
            return
        if self.llmatcher.is_error():
            error = self.llmatcher.get_error()
            if self._entry is not None and error.startswith("lexer error"):
                self.exhausted = True
            else:
                self.failed = plain(error)
        elif self._budget < 0:
            most = f"{_BUDGET_PER_TOKEN * 1000:g} ms a token"
            self.failed = f"to see what it allows next takes more than {most}, as with an ambiguous grammar"
