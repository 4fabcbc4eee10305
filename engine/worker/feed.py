"""What a step samples, as the next one takes it: before any host knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from engine.core.plan import Plan


@dataclass(frozen=True, slots=True)
class Feed:
    """Rows of a tensor on the device."""

    rows: Mapping[int, int]
    """By request, its place."""
    count: int
    tokens: Tensor | None = None
    """int64 [count, width], on the device, or [count]; ``None`` where nothing is sampled, or on another rank than the
    first."""
    width: int = 1
    """With draft tokens: how many were rejected, the last token that was kept, and what is proposed after it."""

    @property
    def size(self) -> int:
        return self.count * self.width


@dataclass(frozen=True, slots=True)
class FedPlan:
    """A plan that takes tokens from the step before, as another rank than the first has it."""

    plan: Plan
    feed: Feed
