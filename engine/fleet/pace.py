"""How fast models change places."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Times in seconds."""

    turn: float = 4.0
    """A turn is at least so many times as long as the load before it, and"""
    shortest_turn: float = 5.0
    longest_turn: float = 30.0
    """But no longer."""
    linger: float = 0.5
    """For which a model still counts as asked after its last answer: its next request may be on its way."""
    look: float = 1.0
    """Between looks at time-outs and memory."""
    backoff: float = 1.0
    """Before a load is tried again after one that failed; doubled by each that follows, up to"""
    longest_backoff: float = 30.0
