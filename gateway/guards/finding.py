"""What a scanner says of a text. A finding never holds the text itself: it goes into receipts and logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.types import Call

Origin = Literal["system", "user", "assistant", "tool", "answer"]
"""Whose words a text is: the developer's, the caller's, an earlier answer's, a tool's or document's, the answer's."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found, at ``[start, end)`` in characters."""

    label: str
    """What it is: ``EMAIL_ADDRESS``, ``hate``, ``aws_access_key`` …"""
    start: int
    end: int
    score: float = 1.0
    """0 to 1: how sure it is."""

    def __reduce__(self) -> tuple[type[Finding], tuple[str, int, int, float]]:
        return Finding, (self.label, self.start, self.end, self.score)  # a third of the usual way's time


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement of one text. Without findings the text is clean."""

    findings: tuple[Finding, ...] = ()
    """In order, without overlaps; only what reaches the guard's threshold."""
    score: float = 0.0
    """Of the most certain candidate, whether or not it reached the threshold."""
    tier: str = "fast"
    """Who decided: ``fast``, ``model`` or ``judge``."""


class Unscanned(Exception):
    """A text could not be judged; the guard's ``on_error`` says what happens. The message is for logs."""


class Scanner(Protocol):
    """Looks for one kind of thing. One instance a guard, shared by all requests: it keeps nothing of a text."""

    origins: frozenset[Origin]
    """Whose words it looks at."""
    longest: int
    """Characters of the longest thing it is sure to find; a window must be at least as wide. 0: any window will do."""

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        """The fast tier, in this very process: at most 2 ms for 1,000 characters. None where it cannot decide."""
        ...

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        """Judges the texts that ``quick`` left open. Raises ``Unscanned``. The caller bounds the time.

        ``call`` is whose they are: it is told what a judge costs.
        """
        ...
