"""The ids of one server's answers, and in which of its APIs each answer is known to have one of its own.

An answer under the id of the one before it is a surplus one only where ids tell answers apart. Many servers have one id
for all answers, one for each model, one for each second, or one of a few that they draw (Ollama's are ``chatcmpl-0`` to
``chatcmpl-998``); so two that differ prove nothing.
"""

from __future__ import annotations

from typing import NamedTuple

ENOUGH = 64
"""Answers in a row, each under another id, after which an API's ids are believed to be its answers' own."""
LONG = 20
"""Characters of an id that can be: shorter ones are counters, times in seconds, or draws from a few."""
MOST_APIS = 1000
"""Of which ids are remembered: paths and content types may be any."""

Question = tuple[int, int]
"""The size of a request, and a digest of its end."""


class IdKind(NamedTuple):
    """Ids of one kind, in the answers of one API."""

    place: str
    """Where they stand: a header's name, or ``body``."""
    asked: str
    """The request line."""
    content_type: bytes
    """Of the answer: servers give streams ids of another kind."""


class AnswerIds:
    def __init__(self) -> None:
        self.own: set[IdKind] = set()
        """The kinds that tell answers apart."""
        self._seen: dict[IdKind, dict[int, Question]] = {}
        """Of the others: digests of the ids since the last that came twice, and what each was the answer to."""

    def add(self, kind: IdKind, id: str, question: Question) -> None:
        """An answer of a kind that is not known to be its answers' own."""
        if len(id) < LONG:
            self._seen.pop(kind, None)
            return
        seen = self._seen.get(kind)
        if seen is None:
            if len(self._seen) + len(self.own) >= MOST_APIS:
                return
            seen = self._seen[kind] = {}
        digest = hash(id)
        # The same question may have the same answer, out of a cache.
        if seen.get(digest, question) != question:
            seen.clear()
        seen[digest] = question
        if len(seen) >= ENOUGH:
            del self._seen[kind]
            self.own.add(kind)

    def repeated(self, kind: IdKind) -> None:
        """One came twice: believed again once enough have not."""
        self.own.discard(kind)
