"""Single flight: equal requests in flight at the same time share one call upstream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

from gateway.caching.answers import CLIPPED, Recording
from gateway.errors import (
    DeadlineExceeded,
    Forbidden,
    GatewayError,
    Overloaded,
    RateLimited,
    ShuttingDown,
)
from gateway.types import Call, Chunk, Chunks, Json, Receipt

OF_THE_LEADER = (Overloaded, RateLimited, DeadlineExceeded, ShuttingDown, Forbidden)
"""Errors about who asked, and when, and not about what was asked: other readers may fare better on their own."""

AHEAD = 256
"""Chunks that the call may be ahead of its fastest reader."""
BEHIND = 4_096
"""Chunks that a reader may be behind the call before they are joined."""
MOST_BEHIND = 4 * 2**20
"""Characters, joined, that a reader may be behind before the call waits for it."""

_OWN = frozenset({"id", "created"})


class LeaderFailed(Exception):
    """The call failed for a reason that concerns only its first reader; nothing was read of it."""


Source = Callable[[Call, Recording], Chunks]
"""Sends the call on, and records what comes back."""


class Flight:
    """One call upstream, and everyone who reads its answer. It runs in a task of its own, for as long as it has
    readers.

    ``call`` is a copy with a receipt, ``reply_headers`` and ``upstream_usage`` of its own. They go to the payer, the
    first reader: its allowance holds what the call may cost, until the call has ended. What happens when a reader
    leaves:

    =========  =====================  =======================================  =================================
    who        the call has ended     others still read                        nobody else reads
    =========  =====================  =======================================  =================================
    the payer  is charged             waits for the end, and is charged; if    the call is cancelled, the payer
                                      cancelled while it waits, the next       is charged for what it used
                                      reader becomes the payer
    another    reads for free         reads for free                           the call is cancelled; the payer,
                                                                               who waits for that, is charged
    =========  =====================  =======================================  =================================
    """

    def __init__(self, call: Call, source: Source, *, max_entry: int, on_end: Callable[[], object]) -> None:
        self.call = replace(
            call, receipt=Receipt(call.request_id, call.receipt.created), reply_headers={}, upstream_usage=[]
        )
        self.recording = Recording()
        self.begun = False
        self.done = False
        self.error: BaseException | None = None
        self._readers: list[Reader] = []
        self._payer: Reader | None = None
        self._max_entry = max_entry
        self._paused: asyncio.Future[None] | None = None
        self._on_end = on_end
        self._task = asyncio.get_running_loop().create_task(self._run(source))

    @property
    def may_be_joined(self) -> bool:
        """All of the answer so far must be recorded, and it must not have failed."""
        return not self.done and not self.recording.cut and self.recording.size <= self._max_entry

    def join(self, call: Call) -> Reader:
        reader = Reader(self, call, leads=self._payer is None)
        if self._payer is None:
            self._payer = reader
        if self.begun:
            reader.chunks.extend(self.recording.chunks())
            if reader.chunks:
                reader.chunks[-1].more = False
        self._readers.append(reader)
        return reader

    async def leave(self, reader: Reader) -> None:
        """See the table above."""
        self._readers.remove(reader)
        if not self._readers and not self.done:
            self._end()
            self._task.cancel()
        self.resume()
        if reader is self._payer:
            try:
                await self._ended()
            finally:
                if self.done or not self._readers:
                    self._charge(reader.call)
                else:
                    self._hand_over(reader, self._readers[0])
        else:
            if not self._readers:
                await self._ended()
            reader.call.cached = "exact"
            if facts := self.call.receipt.notes.get("guard_output"):
                reader.call.receipt.note("guard_output", **facts)

    async def _ended(self) -> None:
        if not self._task.done():
            await asyncio.wait([self._task])

    def _charge(self, payer: Call) -> None:
        # A payer that left before the first chunk has not seen which candidate was called.
        payer.candidate = self.call.candidate
        payer.upstream_usage.extend(self.call.upstream_usage)
        for stage, facts in self.call.receipt.notes.items():
            payer.receipt.note(stage, **facts)

    def _hand_over(self, payer: Reader, following: Reader) -> None:
        self._payer = following
        payer.call.cached, following.call.cached = "exact", None
        payer.call.receipt.note("cache", paid_by=following.call.request_id)

    def resume(self) -> None:
        """A reader has read, or left."""
        if self._paused is not None and not self._paused.done():
            self._paused.set_result(None)

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self, source: Source) -> None:
        try:
            async with aclosing(source(self.call, self.recording)) as chunks:
                async for chunk in chunks:
                    if chunk.comment is None:
                        self.begun = True
                    for reader in self._readers:
                        reader.feed(chunk)
                    if self._is_ahead():
                        for reader in self._readers:
                            if len(reader.chunks) >= BEHIND:
                                reader.condense()
                        while self._is_ahead():
                            self._paused = asyncio.get_running_loop().create_future()
                            await self._paused
        except BaseException as error:
            self.error = error
            if not isinstance(error, Exception | asyncio.CancelledError):
                raise
        finally:
            self._end()
            for reader in self._readers:
                reader.wake()

    def _end(self) -> None:
        if not self.done:
            self.done = True
            self._on_end()

    def _is_ahead(self) -> bool:
        readers = self._readers
        if len(readers) == 1:
            return len(readers[0].chunks) >= AHEAD
        waiting = [len(reader.chunks) for reader in readers]
        return bool(waiting) and (min(waiting) >= AHEAD or max(waiting) >= BEHIND)


class Reader:
    """One caller's view of a flight."""

    __slots__ = ("_leads", "_waiter", "call", "chunks", "flight")

    def __init__(self, flight: Flight, call: Call, *, leads: bool) -> None:
        self.flight = flight
        self.call = call
        self.chunks: deque[Chunk] = deque()
        self._leads = leads
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, chunk: Chunk) -> None:
        if not self._leads:
            # Stages above may change a chunk, and each answer has an id of its own.
            envelope: Mapping[str, Json] = chunk.envelope
            if envelope:
                envelope = {name: value for name, value in envelope.items() if name not in _OWN}
            revocation = chunk.revocation
            if revocation is not None and "request_id" in revocation:
                revocation = {**revocation, "request_id": self.call.request_id}
            chunk = replace(chunk, envelope=envelope, revocation=revocation)
        elif len(self.flight._readers) > 1:
            chunk = replace(chunk)
        self.chunks.append(chunk)
        if self._waiter is not None:
            self.wake()

    def condense(self) -> None:
        """Join the waiting chunks into a few long ones: a slow reader must not hold up the others."""
        recording = Recording()
        own: dict[str, Json] = {}
        for chunk in self.chunks:
            if chunk.revocation is not None:
                return  # the end
            if chunk.comment is None:
                recording.add(chunk)
                own = own or {name: chunk.envelope[name] for name in _OWN & chunk.envelope.keys()}
        joined = recording.chunks()
        if recording.size > MOST_BEHIND or not joined:
            return
        for chunk in joined:
            chunk.envelope = {**own, **chunk.envelope}
        joined[-1].more = False
        self.chunks.clear()
        self.chunks.extend(joined)

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self) -> Chunks:
        """The answer from its beginning. Raises what the call raised, or ``LeaderFailed``."""
        flight, call, chunks = self.flight, self.call, self.chunks
        begun = False
        try:
            while True:
                while chunks:
                    chunk = chunks.popleft()
                    first = not begun and chunk.comment is None
                    if first and self._is_cut_for_another():
                        raise LeaderFailed
                    call.candidate = flight.call.candidate
                    if first:
                        begun = True
                        call.reply_headers.update(flight.call.reply_headers)
                    yield chunk
                if flight.error is not None or flight.done:
                    break
                flight.resume()
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
                self._waiter = None
            call.candidate = flight.call.candidate
            call.reply_headers.update(flight.call.reply_headers)
            if flight.error is not None:
                self._fail(flight.error, begun)
        finally:
            await flight.leave(self)

    def _is_cut_for_another(self) -> bool:
        """The payer's limits shortened the answer; this caller's may allow more."""
        call = self.flight.call
        own = call.principal.key_id == self.call.principal.key_id
        return not own and call.allowance is not None and CLIPPED in call.reply_headers

    def _fail(self, error: BaseException, begun: bool) -> None:
        if isinstance(error, asyncio.CancelledError):
            error = ShuttingDown(
                "The gateway is shutting down and could not finish this request.", retry_after=1.0
            )
        if not isinstance(error, GatewayError):
            raise error
        if not self._leads and not begun and isinstance(error, OF_THE_LEADER):
            raise LeaderFailed
        raise _copy(error) from error


class Flights:
    """The flights of one policy generation, by what was asked."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, Flight] = {}
        self._all: set[Flight] = set()

    @property
    def in_flight(self) -> int:
        return len(self._all)

    def find(self, key: Hashable) -> Flight | None:
        flight = self._flights.get(key)
        return flight if flight is not None and flight.may_be_joined else None

    def start(self, key: Hashable, call: Call, source: Source, *, max_entry: int) -> Flight:
        def on_end() -> None:
            self._all.discard(flight)
            if self._flights.get(key) is flight:
                del self._flights[key]

        flight = Flight(call, source, max_entry=max_entry, on_end=on_end)
        self._flights[key] = flight
        self._all.add(flight)
        return flight

    async def aclose(self) -> None:
        for flight in list(self._all):
            await flight.aclose()


def _copy(error: GatewayError) -> GatewayError:
    """A copy for each reader: headers that are added for one must not reach the others."""
    copy: Any = error.__class__.__new__(error.__class__)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.headers = dict(error.headers)
    return cast(GatewayError, copy)
