"""One step of an answer, and where it goes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

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


class Sink(Protocol):
    """Where pieces of a streamed answer go past all generators that neither change nor keep them: the client's end, or
    before that the guards', who write what they release to the client's.

    On its way: ``web.answering`` gives it to the call; ``upstream_loop`` says past which stream pieces would go; a
    stage that looks on puts its own there; ``record`` takes it from the call where some stage gives it another; then
    the backend hands it to its ``Exchange``, whose ``StreamRelay`` writes to it once it is open.
    """

    source: object
    """The stream past which pieces go: made by the loop over candidates, the guards, or one that looks on."""
    looking: list[Callable[[Chunk, Sequence[str]], object]]
    """They are told of what was passed on, as ``pass_on`` is: who counts, or keeps what may have to be continued."""
    is_open: bool
    """The answer has begun for the client."""

    def pass_on(self, like: Chunk, texts: Sequence[str]) -> bool:
        """Write the chunks that ``like.with_text`` makes of ``texts``; False, and nothing is done, where the client is
        to be waited for."""
        ...

    async def caught_up(self) -> None:
        """Until others have passed on what they were given of the answer before, where those are other tasks."""
        ...


Chunks = AsyncGenerator[Chunk, None]
"""An answer in flight. Whoever stops reading early closes it, and so stops the work behind it."""
