"""Blocks that another engine computes: who is asked, and what the scheduler has to know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.core.request import Request


class Fetch(Protocol):
    """Blocks of one prompt that are under way."""

    @property
    def done(self) -> bool:
        """Whether no more will come: those that came are in host memory."""
        ...

    @property
    def computed(self) -> int:
        """Tokens of those that came that the other engine computed for this prompt, and had not cached."""
        ...

    def cancel(self) -> None:
        """They are of no use any more."""
        ...


class RemoteBlocks(Protocol):
    """``engine.handover.fetching.Fetching`` does it."""

    @property
    def busy(self) -> bool:
        """Whether something is under way."""
        ...

    def begin(self, request: Request, first: int, keys: Sequence[bytes]) -> Fetch | None:
        """Asks for the blocks of the request's prompt from the ``first`` on, which have these ``keys``; ``None`` if
        they are to be computed here."""
        ...

    def tick(self) -> None:
        """Takes in what came."""
        ...


@dataclass(slots=True)
class HandoverState:
    """Since the start."""

    fetched_prompts: int = 0
    """Prompts whose blocks another engine computed, all or some,"""
    fetched_blocks: int = 0
    """and these blocks."""
    failed: int = 0
    """Prompts whose rest was computed here, as the other engine was gone, too slow, full or of another kind."""
    corrupt: int = 0
    """Blocks that were refused, as they were not what was sent."""
    short: int = 0
    """Prompts of which too little was missing to ask another engine."""
    given_prompts: int = 0
    """Prompts that were computed for other engines,"""
    given_blocks: int = 0
    """and blocks that were handed to them."""
    abandoned: int = 0
    """Prompts whose engine was gone before it had its blocks."""
