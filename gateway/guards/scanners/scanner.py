"""The interface of a guard's scanner, and its verdict on a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from gateway.findings import Finding
from gateway.types import Call

Origin = Literal["system", "user", "assistant", "tool", "definition", "identifier", "answer"]
"""Where a text comes from: the developer, the caller, a model earlier, a tool or document; the definition of a tool or
schema, names and ids and URLs, which are no prose; the model now."""
ORIGINS: tuple[Origin, ...] = get_args(Origin)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of scanning one text. Without findings the text is clean."""

    findings: tuple[Finding, ...] = ()
    """In order, without overlaps; only what reaches the guard's threshold."""
    score: float = 0.0
    """Of the best candidate, above the threshold or not."""
    check: str = "fast"
    """What decided: ``fast``, ``model`` or ``judge``."""


class Unscanned(Exception):
    """A text could not be scanned; the guard's ``on_error`` says what follows. The message is for logs."""


class Scanner(Protocol):
    """Finds one kind of thing. One instance a guard, shared by all requests and without state."""

    origins: frozenset[Origin]
    """Which origins it scans."""
    longest: int
    """Characters of the longest thing that it is sure to find, and so of the smallest window. 0: any window will do."""

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        """The fast check: at most 2 ms for 1,000 characters. None if it cannot decide."""
        ...

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        """Scans the texts that ``quick`` left undecided. Raises ``Unscanned``. The caller sets a timeout.

        ``call`` is the request that they belong to, on whose receipt a judge's cost is noted.
        """
        ...
