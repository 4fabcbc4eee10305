"""Equal requests that are under way at the same time share one call upstream."""

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

ITS_OWN = (Overloaded, RateLimited, DeadlineExceeded, ShuttingDown, Forbidden)
"""Errors that tell of who asked, and when, and nothing of what was asked."""

AHEAD = 256
"""Chunks that the call may be ahead of its fastest reader."""
BEHIND = 4_096
"""Chunks that a reader may be behind the call before they are joined."""
MOST_BEHIND = 4 * 2**20
"""Characters, joined, that a reader may be behind the call before all wait for it."""

_OWN = frozenset({"id", "created"})


class AskYourself(Exception):
    """The call failed for a reason of its leader's; nothing was read of it."""


Source = Callable[[Call, Recording], Chunks]
"""Sends the call on, and records what comes back."""


class Flight:
    """One call upstream and all who read its answer. It runs in a task of its own, and no longer than it has readers.

    ``call`` is a copy with a receipt, ``reply_headers`` and ``upstream_usage`` of its own: they go to the payer,
    which is the first reader. Its allowance holds what the call may cost, so it pays, whoever still reads.
    """

    def __init__(self, call: Call, source: Source, *, max_entry: int, landed: Callable[[], object]) -> None:
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
        self._room: asyncio.Future[None] | None = None
        self._landed = landed
        self._task = asyncio.get_running_loop().create_task(self._run(source))

    @property
    def may_be_joined(self) -> bool:
        """It must still be known from its beginning, and be on its way to a good end."""
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
        """Who pays waits until the work behind the call has stopped, and so does the last to leave."""
        self._readers.remove(reader)
        if not self._readers and not self.done:
            self._land()
            self._task.cancel()
        self.make_room()
        if reader is not self._payer:
            if not self._readers:
                await self._end()
            reader.call.cached = "exact"
            self._tell(reader.call)
            return
        try:
            await self._end()
        finally:
            if self.done or not self._readers:
                # Who left before the first chunk has not seen where it had been sent.
                reader.call.candidate = self.call.candidate
                self._bill(reader.call)
            else:
                self._hand_over(reader, self._readers[0])

    async def _end(self) -> None:
        if not self._task.done():
            await asyncio.wait([self._task])

    def _hand_over(self, payer: Reader, following: Reader) -> None:
        """``payer`` is made to go before the end: somebody has to pay."""
        self._payer = following
        payer.call.cached, following.call.cached = "exact", None
        payer.call.receipt.note("cache", paid_by=following.call.request_id)

    def make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def _bill(self, call: Call) -> None:
        call.upstream_usage.extend(self.call.upstream_usage)
        for stage, facts in self.call.receipt.notes.items():
            call.receipt.note(stage, **facts)

    def _tell(self, call: Call) -> None:
        """A follower's receipt has the guards' verdict too."""
        if verdict := self.call.receipt.notes.get("guard_output"):
            call.receipt.note("guard_output", **verdict)

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
                        await self._wait_for_room()
        except BaseException as error:
            self.error = error
            if not isinstance(error, Exception | asyncio.CancelledError):
                raise
        finally:
            self._land()
            for reader in self._readers:
                reader.wake()

    def _land(self) -> None:
        if not self.done:
            self.done = True
            self._landed()

    def _is_ahead(self) -> bool:
        readers = self._readers
        if len(readers) == 1:
            return len(readers[0].chunks) >= AHEAD
        waiting = [len(reader.chunks) for reader in readers]
        return bool(waiting) and (min(waiting) >= AHEAD or max(waiting) >= BEHIND)

    async def _wait_for_room(self) -> None:
        while self._is_ahead():
            self._room = asyncio.get_running_loop().create_future()
            await self._room


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
            told = chunk.revocation
            if told is not None and "request_id" in told:
                told = {**told, "request_id": self.call.request_id}
            chunk = replace(chunk, envelope=envelope, revocation=told)
        elif len(self.flight._readers) > 1:
            chunk = replace(chunk)
        self.chunks.append(chunk)
        if self._waiter is not None:
            self.wake()

    def condense(self) -> None:
        """Make a few long chunks of all that wait: who reads slowly, or not at all, holds up nobody else."""
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
        """The answer from its beginning. Raises what the call raised, or ``AskYourself``."""
        flight, call, chunks = self.flight, self.call, self.chunks
        heard = False
        try:
            while True:
                while chunks:
                    chunk = chunks.popleft()
                    first = not heard and chunk.comment is None
                    if first and self._is_cut_for_another():
                        raise AskYourself
                    call.candidate = flight.call.candidate
                    if first:
                        heard = True
                        call.reply_headers.update(flight.call.reply_headers)
                    yield chunk
                if flight.error is not None or flight.done:
                    break
                flight.make_room()
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
                self._waiter = None
            call.candidate = flight.call.candidate
            call.reply_headers.update(flight.call.reply_headers)
            if flight.error is not None:
                self._fail(flight.error, heard)
        finally:
            await flight.leave(self)

    def _is_cut_for_another(self) -> bool:
        """The limits of another key allowed for no longer answer, which says nothing of what this caller's do."""
        call = self.flight.call
        own = call.principal.key_id == self.call.principal.key_id
        return not own and call.allowance is not None and CLIPPED in call.reply_headers

    def _fail(self, error: BaseException, heard: bool) -> None:
        if isinstance(error, asyncio.CancelledError):
            error = ShuttingDown(
                "The gateway is shutting down and could not finish this request.", retry_after=1.0
            )
        if not isinstance(error, GatewayError):
            raise error
        if not self._leads and not heard and isinstance(error, ITS_OWN):
            raise AskYourself
        raise _copy(error) from error


class Flights:
    """Those under way, by what was asked. One for each policy generation, whose backends they use."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, Flight] = {}
        self._all: set[Flight] = set()

    @property
    def under_way(self) -> int:
        return len(self._all)

    def find(self, key: Hashable) -> Flight | None:
        flight = self._flights.get(key)
        return flight if flight is not None and flight.may_be_joined else None

    def start(self, key: Hashable, call: Call, source: Source, *, max_entry: int) -> Flight:
        def landed() -> None:
            self._all.discard(flight)
            if self._flights.get(key) is flight:
                del self._flights[key]

        flight = Flight(call, source, max_entry=max_entry, landed=landed)
        self._flights[key] = flight
        self._all.add(flight)
        return flight

    async def aclose(self) -> None:
        for flight in list(self._all):
            await flight.aclose()


def _copy(error: GatewayError) -> GatewayError:
    """One for each reader: headers that are added for the one must not reach the others."""
    copy: Any = error.__class__.__new__(error.__class__)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.headers = dict(error.headers)
    return cast(GatewayError, copy)
