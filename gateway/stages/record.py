"""What only observes requests: any number of recorders in one stage, for one layer's cost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol

from gateway.types import Call, Chunk, Chunks, Handler, Stage

log = logging.getLogger(__name__)


class Recorder(Protocol):
    """Records one request."""

    async def begin(self) -> None:
        """May refuse the request by raising; ``end`` is not called then."""
        ...

    @property
    def chunk(self) -> Callable[[Chunk], None] | None:
        """Called with each chunk of the answer; None where a recorder does not look at them."""
        ...

    def end(self, error: BaseException | None) -> object:
        """The request is over, ended by ``error`` if the answer is not complete."""
        ...


def record(*recorders: Callable[[Call], Recorder]) -> Stage:
    """The first begins first and ends last. One that fails at the end is logged, and costs the others nothing."""

    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            chunks = recorded(call)
            if call.splice is not None:
                call.splice.made(chunks)
            return chunks

        async def recorded(call: Call) -> Chunks:
            begun: list[Recorder] = []
            try:
                for recorder_of in recorders:
                    recorder = recorder_of(call)
                    await recorder.begin()
                    begun.append(recorder)
                observers = [observe for recorder in begun if (observe := recorder.chunk) is not None]
                async with aclosing(following(call)) as chunks:
                    if call.splice is not None:
                        call.splice.reads(chunks, *observers)
                    async for chunk in chunks:
                        for observe in observers:
                            observe(chunk)
                        yield chunk
            except BaseException as error:
                # Not kept in a variable, as an error and a frame that it came through would hold each other.
                end(call, begun, error)
                raise
            else:
                end(call, begun, None)

        def end(call: Call, begun: list[Recorder], error: BaseException | None) -> None:
            for recorder in reversed(begun):
                try:
                    recorder.end(error)
                except Exception:
                    log.exception("%s could not be recorded", call.request_id)

        return handle

    return stage
