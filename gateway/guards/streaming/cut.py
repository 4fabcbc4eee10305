"""The end of an answer that a guard cut, for the caller and for the receipt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gateway.guards.guards import Guard
from gateway.guards.texts.deltas import CONTENT
from gateway.types import Chunk, Json, Usage

_SHARED = ("id", "created", "system_fingerprint")
"""What the last chunk has in common with those before it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Why and where an answer ends."""

    guard: Guard
    reason: str
    choice: int
    channel: str
    position: int
    """Of the first unsafe character, in the text as the client would have it."""
    leaked: int
    seconds: float
    """Since that character arrived."""

    def facts(self) -> dict[str, Json]:
        """For the receipt."""
        return {
            "guard": self.guard.name,
            "reason": self.reason,
            "choice": self.choice,
            "channel": self.channel,
            "from": self.position,
            "leaked": self.leaked,
            "seconds": round(self.seconds, 6),
        }

    def revocation(self, request_id: str) -> dict[str, Json]:
        """For the caller. ``from`` is in the text that ``channel`` names, the content if it names none."""
        facts: dict[str, Json] = {
            "revoked": True,
            "reason": self.reason,
            "guard": self.guard.name,
            "from": self.position,
            "choice": self.choice,
            "request_id": request_id,
        }
        if self.guard.config.message is not None:
            facts["message"] = self.guard.config.message
        return facts if self.channel == CONTENT else {**facts, "channel": self.channel}


def final_chunks(
    cut: Cut,
    request_id: str,
    open_: Iterable[int],
    envelope: Mapping[str, Json],
    usage: Usage | None,
    *,
    begun: bool = True,
) -> list[Chunk]:
    """One chunk for each choice of ``open_``, the cut one last.

    If the cut one has not ``begun``, its first chunk comes before the others': OpenAI's client relies on that.
    """
    shared = {name: value for name, value in envelope.items() if name in _SHARED}
    others = [index for index in sorted(open_) if index != cut.choice]
    last = [Chunk(index, {}, "content_filter", envelope=shared, more=True) for index in (*others, cut.choice)]
    if others and not begun:
        last.insert(0, Chunk(cut.choice, {"role": "assistant", "content": ""}, envelope=shared, more=True))
    last[-1] = replace(last[-1], more=False, usage=usage, revocation=cut.revocation(request_id))
    return last
