"""One choice of an answer that is scanned on its way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gateway.guards.actions.native import Path
from gateway.guards.streaming.window import Lane
from gateway.types import Chunk


@dataclass(slots=True)
class Held:
    """A chunk that has come and not left."""

    chunk: Chunk
    pieces: list[tuple[Lane, Path, str, int]]
    """Its texts, with the places where they end."""


@dataclass(slots=True)
class Choice:
    """One choice of an answer under guard: its texts, by channel, and what of it waits."""

    lanes: dict[str, Lane] = field(default_factory=dict)
    queue: deque[Held] = field(default_factory=deque)
    current: Lane | None = None
    """The text that grew last."""
    characters: int = 0
    last: bool = False
    """No more text is expected."""
    begun: bool = False
    """The client has heard of it."""
    finished: bool = False
    """The client knows that it has ended."""

    def turn(self, lane: Lane) -> list[Lane]:
        """``lane`` grows now; returns what is over with that.

        Thoughts are over where content begins, and a call where the next one does: else the end of each would hold
        back all that follows it. Should a server speak by turns after all, each part was judged by itself once, and
        from then on the text waits for the end of the answer.
        """
        before, self.current = self.current, lane
        if lane.over:
            lane.over = False
            lane.resumed = True
        if before is None or before.resumed:
            return []
        before.over = True
        return [before]

    def is_judged(self) -> bool:
        return all(watch.final == lane.end for lane in self.lanes.values() for watch in lane.watches)
