"""What waits to be judged: a request that was answered, by one model or by a shadow as well."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from gateway.recording.kept_answer import KeptAnswer
from gateway.recording.masking import TextMasker
from gateway.recording.snapshot import size_of
from gateway.types import Arm, Principal


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, without its call: all of that goes when the request does."""

    request_id: str
    principal: Principal
    created: float
    """Unix time."""
    route: str
    local_only: bool
    """Its content is for local backends only."""
    residency: frozenset[str] | None
    """Regions to which it may go; None: anywhere."""
    masker: TextMasker
    """Of the policy that it was answered under."""
    arm: Arm | None = None
    """Of a roll-out, where that arm's own target answered."""
    trace_id: str | None = None
    """Where it was traced."""


@dataclass(frozen=True, slots=True)
class Side:
    """An answer, and what it took."""

    model: str
    """The public model that answered."""
    target: str
    """``backend/model``."""
    answer: KeptAnswer
    seconds: float
    nanodollars: int


@dataclass(frozen=True, slots=True)
class Work:
    asked: Asked
    answered: Side
    shadow: Side | None = None
    since: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        """Bytes that it holds, approximately."""
        answer = self.answered.answer
        return size_of(answer.asked, answer) + (0 if self.shadow is None else self.shadow.answer.size)
