"""What every guard's scanner is, and what it says of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.findings import Finding
from gateway.types import Call

Origin = Literal["system", "user", "assistant", "tool", "answer"]
"""Whose words a text is: the developer's, the caller's, an earlier answer's, a tool's or document's, the answer's."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A batch of one text. Without findings the text is clean."""

    findings: tuple[Finding, ...] = ()
    """In order, without overlaps; only what reaches the guard's threshold."""
    score: float = 0.0
    """Of the most certain candidate, whether or not it reached the threshold."""
    check: str = "fast"
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
        """The fast check, in this very process: at most 2 ms for 1,000 characters. None where it cannot decide."""
        ...

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        """Judges the texts that ``quick`` left open. Raises ``Unscanned``. The caller bounds the time.

        ``call`` is whose they are: it is told what a judge costs.
        """
        ...
