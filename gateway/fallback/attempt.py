"""One try of one candidate."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from gateway.fallback.breaker import Trial
from gateway.fallback.continuation import Joint, joined_usage, says
from gateway.types import Call, Candidate, Chunk, Usage


@dataclass(frozen=True, slots=True)
class Turn:
    """A candidate, and how often it has failed this call before; ``afresh``, it is not asked to go on."""

    candidate: Candidate
    failed: int = 0
    afresh: bool = False


class Attempt:
    """One try of one candidate."""

    __slots__ = (
        "admitted",
        "before",
        "began",
        "call",
        "facts",
        "heard",
        "joint",
        "pieces",
        "trial",
        "turn",
        "usage",
    )

    def __init__(self, turn: Turn, trial: Trial, call: Call, joint: Joint, before: int = 0) -> None:
        self.turn = turn
        self.trial = trial
        self.call = call
        self.joint = joint
        self.before = before
        """Tokens of the answer that stand in its prompt, as it goes on from them."""
        self.admitted = True
        """Our own queue let it through to the backend."""
        self.heard = False
        """The caller has something of it."""
        self.usage: Usage | None = None
        self.pieces = 0
        """Chunks with content."""
        self.began = time.perf_counter()
        self.facts: dict[str, Any] = {
            "backend": turn.candidate.target.backend,
            "model": turn.candidate.target.model,
        }
        if turn.candidate.why != "primary":
            self.facts["why"] = turn.candidate.why

    def take(self, chunk: Chunk) -> None:
        """Count it; its usage becomes the whole answer's."""
        delta = chunk.delta
        if delta and (delta.get("content") or says(chunk)):
            self.pieces += 1
        if chunk.usage is not None:
            self.usage = chunk.usage
            if self.before:
                chunk.usage = joined_usage(chunk.usage, self.before)
