"""One step of an answer, and where it goes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

from gateway.types.json_value import Json
from gateway.types.usage import Usage


@dataclass(slots=True)
class Chunk:
    """One step of an answer: a delta to one choice, or, with ``delta`` None, only envelope or usage.

    ``envelope`` holds the upstream response's own top-level fields (``id``, ``created``, ``system_fingerprint`` …).
    """

    index: int = 0
    delta: Mapping[str, Json] | None = None
    finish_reason: str | None = None
    stop: str | int | None = None
    """With ``finish_reason``: the stop string or token of the caller's that ended it, where the server reports it."""
    logprobs: Json = None
    usage: Usage | None = None
    envelope: Mapping[str, Json] = field(default_factory=dict)
    comment: str | None = None
    """For a client that waits, such as its position in the queue; no part of the answer."""
    more: bool = False
    """Another chunk follows at once: both may leave in one write."""
    revocation: Mapping[str, Json] | None = None
    """On the last chunk of an answer that a guard cut: sent to the caller as ``tollgate``."""
    choice: Mapping[str, Json] | None = None
    """Further fields of the choice, beside its delta, such as a provider's filter verdicts."""

    def with_text(self, text: str, *, more: bool = False) -> Chunk:
        """Another piece of the text of which this is one, and nothing else."""
        (name,) = self.delta or ("content",)
        return Chunk(self.index, {name: text}, envelope=self.envelope, choice=self.choice, more=more)


Chunks = AsyncGenerator[Chunk, None]
"""An answer in flight. Whoever stops reading early closes it, and so stops the work behind it."""
