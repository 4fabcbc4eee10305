"""What one step computes: the scheduler's words to the worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.core.logprobs import TokenLogprobs
from engine.core.request import FinishReason
from engine.core.sampling_params import SamplingParams


@dataclass(slots=True)
class Work:
    """Run ``tokens``, which stand at positions ``start``, ``start + 1`` …, through the model."""

    request_id: int
    tokens: list[int]
    start: int
    blocks: list[int]
    """The request's block table, long enough for the new tokens."""
    sampling: SamplingParams | None
    """Set when the last of ``tokens`` is the request's last: then one more is to be drawn after it."""
    generating: bool
    """Whether the prompt was already computed before this step. For the figures alone: it changes no result."""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(slots=True)
class Plan:
    work: list[Work] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    """Requests scheduled for the first time."""
    preempted: list[int] = field(default_factory=list)
    expired: list[tuple[int, float]] = field(default_factory=list)
    """Requests dropped because their deadline passed while they waited, and the seconds that each would need yet."""

    @property
    def tokens(self) -> int:
        return sum(len(work.tokens) for work in self.work)


@dataclass(slots=True)
class Progress:
    """What one request gained in a step."""

    request_id: int
    tokens: list[int]
    finish: FinishReason | None
    logprobs: list[TokenLogprobs] | None = None
    """One for each of ``tokens``, where the request asks for them."""
