"""Where pieces of a streamed answer go past all that only looks on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.types.chunk import Chunk


class Sink(Protocol):
    """Where pieces of a streamed answer go past all generators that neither change nor keep them: the client's end, or
    before that the guards', who write what they release to the client's.

    On its way: ``web.answering`` gives it to the call; ``upstream_loop`` says past which stream pieces would go, and a
    stage that looks on puts its own there (``Call.relays``); whoever finds another stream there takes it from the call
    (``Call.looks_on``); then the backend hands it to its ``Exchange``, whose ``StreamRelay`` writes to it once it is
    open.
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
