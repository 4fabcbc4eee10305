"""Grammars that stay compiled: the most recent ones, as far as what they have learned does not take too much memory.

A matcher's copies share its lexer, whose states are made as texts need them and never unmade. A lexer that is used
again is therefore quick, and grows. llguidance does not tell how many states there are, but making them is what
takes time: the seconds that a lexer was at work bound them (about 300,000 a second, of half a kilobyte each).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

from llguidance import LLMatcher, LLTokenizer

from engine.core.sampling_params import Grammar
from engine.grammar.language import definition, limits

_KEPT = 64
"""Grammars that stay compiled."""

_WORK = 4.0
"""Seconds that the lexers of all that stay may have been at work: 600 MB or less."""


@dataclass(slots=True, eq=False)
class Entry:
    """A compiled grammar. ``matcher`` itself is never used, only its copies."""

    matcher: LLMatcher
    seconds: float = 0.0
    """That its copies were at work."""


class Compiled:
    """May be used from several threads; two that want the same new grammar at once compile it twice."""

    def __init__(self, *, kept: int = _KEPT, work: float = _WORK) -> None:
        self._kept = kept
        self._work = work
        self._entries: OrderedDict[tuple[str, str], Entry] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, grammar: Grammar) -> bool:
        return _key(grammar) in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, grammar: Grammar, tokenizer: LLTokenizer) -> Entry:
        """It may take seconds, and lets other threads run meanwhile."""
        key = _key(grammar)
        entry = self._entries.get(key) or Entry(matcher_of(grammar, tokenizer))
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
            self._trim()
        return entry

    def worked(self, entry: Entry, seconds: float) -> None:
        """A copy of ``entry``'s matcher was at work."""
        with self._lock:
            entry.seconds += seconds
            self._trim()

    def drop(self, grammar: Grammar, entry: Entry) -> None:
        """Whoever asks next gets it compiled anew."""
        key = _key(grammar)
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]

    def _trim(self) -> None:
        while self._entries and (
            len(self._entries) > self._kept or sum(one.seconds for one in self._entries.values()) > self._work
        ):
            self._entries.popitem(last=False)


def matcher_of(grammar: Grammar, tokenizer: LLTokenizer) -> LLMatcher:
    return LLMatcher(tokenizer, definition(grammar), log_level=0, limits=limits(grammar.kind))


def _key(grammar: Grammar) -> tuple[str, str]:
    return grammar.kind, grammar.source
