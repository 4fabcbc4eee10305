"""Compiled grammars: the most recently used ones, within a bound on their lexers' memory.

Copies of a matcher share its lexer, whose states are built on demand and never freed. So a lexer that is reused is
fast, and grows. llguidance does not report the number of states, but building them dominates a lexer's processor time,
which therefore bounds their memory (about 300,000 states a second, half a kilobyte each)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

from llguidance import LLMatcher, LLTokenizer

from engine.core.sampling_params import Grammar
from engine.grammar.language import definition, limits

_MAX_GRAMMARS = 64
"""Compiled grammars that are kept."""

_MAX_SECONDS = 4.0
"""Seconds of processor time that the kept grammars' lexers may have used: 600 MB or less."""


@dataclass(slots=True, eq=False)
class CompiledGrammar:
    """``matcher`` itself is never advanced, only its copies."""

    matcher: LLMatcher
    seconds: float = 0.0
    """Processor time of its copies."""


class GrammarCache:
    """Thread-safe; two threads that ask for the same new grammar at once compile it twice."""

    def __init__(self, *, max_grammars: int = _MAX_GRAMMARS, max_seconds: float = _MAX_SECONDS) -> None:
        self._max_grammars = max_grammars
        self._max_seconds = max_seconds
        self._entries: OrderedDict[tuple[str, str, str], CompiledGrammar] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, grammar: Grammar) -> bool:
        return _key(grammar) in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, grammar: Grammar, tokenizer: LLTokenizer) -> CompiledGrammar:
        """Compiles the grammar if it is not cached, which may take seconds; other threads can run meanwhile."""
        key = _key(grammar)
        entry = self._entries.get(key) or CompiledGrammar(matcher_of(grammar, tokenizer))
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
            self._evict()
        return entry

    def charge(self, entry: CompiledGrammar, seconds: float) -> None:
        """Counts ``seconds`` of work by a copy of ``entry``'s matcher."""
        with self._lock:
            entry.seconds += seconds
            self._evict()

    def drop(self, grammar: Grammar, entry: CompiledGrammar) -> None:
        """The next request of this grammar compiles it anew."""
        key = _key(grammar)
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]

    def _evict(self) -> None:
        while self._entries and (
            len(self._entries) > self._max_grammars
            or sum(one.seconds for one in self._entries.values()) > self._max_seconds
        ):
            self._entries.popitem(last=False)


def matcher_of(grammar: Grammar, tokenizer: LLTokenizer) -> LLMatcher:
    return LLMatcher(tokenizer, definition(grammar), log_level=0, limits=limits(grammar.kind))


def _key(grammar: Grammar) -> tuple[str, str, str]:
    return grammar.kind, grammar.source, grammar.before
