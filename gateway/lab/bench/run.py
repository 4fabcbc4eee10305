"""One server under one load, once.

The open loop keeps to its schedule whatever the server does, and latencies count from it: a server that stands still
makes those late that come meanwhile, as it would people, and not the one request that it had in hand (coordinated
omission).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import nullcontext
from itertools import islice
from random import Random
from time import monotonic
from typing import Any

from gateway.lab.bench.alarm import Alarm
from gateway.lab.bench.conversations import Conversation, Message
from gateway.lab.bench.load import Extent, Load
from gateway.lab.bench.sample import Sample
from gateway.lab.bench.server import Asker

LEAD = 0.05
"""Seconds in which the first requests are made ready before the schedule begins."""
AHEAD = 64
"""Requests that are made ready before their time."""
NEAR = 0.002
"""Seconds before a request's time from which nothing is made ready any more."""
TICK = 0.05

Prepared = tuple[float, int, Conversation, bytes]
"""When it begins, its number, and its first request."""


class Run:
    """``heard`` is called for each sample that ends."""

    def __init__(
        self, asker: Asker, load: Load, extent: Extent, *, think: float, heard: Callable[[Sample], None]
    ) -> None:
        self.samples: list[Sample] = []
        self.loop_lags: list[float] = []
        """Seconds by which the client's own loop was late, every ``TICK``."""
        self.cpu = 0.0
        """Processor seconds of this process."""
        self.wall = 0.0
        self._asker = asker
        self._load = load
        self._extent = extent
        self._think = think
        self._heard = heard
        self._began = 0.0
        self._places = (
            asyncio.Semaphore(load.concurrency) if load.concurrency and load.is_open else nullcontext()
        )
        self._flying: set[asyncio.Task[None]] = set()
        self._driving: asyncio.Task[None] | None = None

    async def run(self, conversations: Iterator[Conversation], random: Random) -> None:
        """Until all is answered, or ``stop`` is called."""
        cpu = time.process_time()
        self._began = monotonic() + (LEAD if self._load.is_open else 0.0)
        watch = asyncio.create_task(self._watch())
        if self._load.is_open:
            drive = self._open(self._prepared(self._load.schedule(conversations, self._extent, random)))
        else:
            drive = self._closed(enumerate(islice(conversations, self._extent.total)))
        self._driving = asyncio.create_task(drive)
        try:
            await asyncio.wait({self._driving})
            if not self._driving.cancelled():
                self._driving.result()
            while self._flying:
                await asyncio.wait(self._flying)
        finally:
            self.stop()
            watch.cancel()
        self.cpu = time.process_time() - cpu
        self.wall = monotonic() - self._began

    def stop(self) -> None:
        """Send nothing more, and break off what is in flight."""
        if self._driving is not None:
            self._driving.cancel()
        for task in self._flying:
            task.cancel()

    def _prepared(self, schedule: Iterator[tuple[float, Conversation]]) -> Iterator[Prepared]:
        for number, (at, conversation) in enumerate(schedule):
            yield at, number, conversation, self._first_body(conversation)

    def _first_body(self, conversation: Conversation) -> bytes:
        first = conversation.turns[0]
        messages = [*conversation.opening, {"role": "user", "content": first.content}]
        return self._asker.server.body(messages, first.output_tokens)

    async def _open(self, coming: Iterator[Prepared]) -> None:
        ready = deque(islice(coming, AHEAD))
        with Alarm() as alarm:
            while ready:
                await alarm.until(self._began + ready[0][0])
                now = monotonic() - self._began
                while ready and ready[0][0] <= now:
                    at, number, conversation, body = ready.popleft()
                    self._launch(self._hold_a_place(number, conversation, at, body))
                while len(ready) < AHEAD and (not ready or monotonic() - self._began < ready[0][0] - NEAR):
                    if (prepared := next(coming, None)) is None:
                        break
                    ready.append(prepared)

    def _launch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._flying.add(task)
        task.add_done_callback(self._flying.discard)

    async def _hold_a_place(self, number: int, conversation: Conversation, at: float, body: bytes) -> None:
        async with self._places:
            await self._hold(number, conversation, at, body)

    async def _closed(self, numbered: Iterator[tuple[int, Conversation]]) -> None:
        async def one_after_another() -> None:
            for number, conversation in numbered:
                now = monotonic() - self._began
                if self._extent.until is not None and now >= self._extent.until:
                    return
                body = self._first_body(conversation)
                await self._hold(number, conversation, monotonic() - self._began, body)

        for _ in range(self._load.concurrency or 1):
            self._launch(one_after_another())

    async def _hold(self, number: int, conversation: Conversation, at: float, body: bytes) -> None:
        """A conversation, each of whose later turns is sent ``think`` seconds after the answer before it."""
        messages: list[Message] = []
        warm_up = self._extent.is_warm_up(number, at)
        last = len(conversation.turns) - 1
        for place, turn in enumerate(conversation.turns):
            if last:  # of a single turn the body is all there is
                messages += conversation.opening if not place else ()
                messages.append({"role": "user", "content": turn.content})
                body = body if not place else self._asker.server.body(messages, turn.output_tokens)
            sample = Sample(number, place, at, warm_up)
            try:
                answer = await self._asker.ask(body, sample, self._began, keep_text=place < last)
            finally:
                self.samples.append(sample)
                self._heard(sample)
            if not sample.ok or place == last:
                return
            messages.append({"role": "assistant", "content": "".join(answer.text)})
            at = sample.end + self._think
            if self._think:
                await asyncio.sleep(at - (monotonic() - self._began))
                at = min(at, monotonic() - self._began)  # the loop's timers may be early by a millisecond

    async def _watch(self) -> None:
        while True:
            due = monotonic() + TICK
            await asyncio.sleep(TICK)
            self.loop_lags.append(max(0.0, monotonic() - due))
