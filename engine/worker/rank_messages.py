"""What rank 0 sends the others beside plans and adapters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DropAdapter:
    """The copy in host memory is not needed any more; a slot that has it keeps it."""

    key: str


@dataclass(frozen=True, slots=True)
class Finish:
    """To the first stage: the step that went into the pipe first comes out."""


@dataclass(frozen=True, slots=True)
class RecordGraphs:
    """Record decode steps now, as rank 0 does."""


@dataclass(frozen=True, slots=True)
class HeadRows:
    """To the first stage: compute your tokens' logits of these rows of the last step's hidden states."""

    rows: list[int]
