"""Runs the lines of one model in one batch, as many side by side as there is room for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter

from gateway.batches.batch import Batch
from gateway.batches.batch_table import BatchTable
from gateway.batches.host import Host, LineAnswer, LineRequest
from gateway.batches.line import Line, result_of
from gateway.batches.line_queue import LineQueue
from gateway.batches.outcome import BACKOFF, counts, delay_after, is_final
from gateway.batches.pace import Pace
from gateway.batches.result_writer import ResultWriter
from gateway.databases.database import DatabaseError
from gateway.errors import (
    AuthUnavailable,
    GatewayError,
    Overloaded,
    Unauthenticated,
)
from gateway.types import Principal

log = logging.getLogger(__name__)

FETCHED = 128
"""Lines that are read from the database at once."""
FETCHED_SIZE = 8 * 2**20
"""Characters of the lines that wait here, beyond which no more are read."""
DATABASE_RETRY = 1.0
FIRST_WINDOW = 2
"""Lines that run side by side at first."""


class LineRun:
    """One run of one line: what its stages ask (``gateway.types.BatchLine``)."""

    def __init__(
        self, run: ModelRun, line: Line, started: int, *, price_factor: float, max_utilization: float
    ) -> None:
        self.line = line
        self.started = started
        self.price_factor = price_factor
        self.max_utilization = max_utilization
        self.reclaimed = False
        self.task: asyncio.Task[None] | None = None
        self._run = run
        self._policies = run.policies

    @property
    def outdated(self) -> bool:
        """The policy has changed since it began."""
        return self._policies != self._run.policies

    def is_final(self, error: BaseException | None) -> bool:
        return is_final(error, self._run.failures[self.line.number])

    def admitted(self, waited: float) -> None:
        self._run.window.went_well(len(self._run.queue.running), waited=waited > 0.01)

    def reclaim(self) -> None:
        if self.task is not None and not self.reclaimed:
            self.reclaimed = True
            self.task.cancel()


class ModelRun:
    """``run`` ends when all its lines have results, or with the first error; whoever cancels it, stops its lines."""

    def __init__(
        self,
        host: Host,
        table: BatchTable,
        batch: Batch,
        model: str,
        writer: ResultWriter,
        paid: frozenset[str],
        pace: Pace,
    ) -> None:
        """``paid`` are the ids of lines' requests that the ledger has although they have no result."""
        self._host = host
        self._table = table
        self._batch = batch
        self._model = model
        self._writer = writer
        self._paid = paid
        self._pace = pace
        self.queue = LineQueue()
        self.window = Window()
        self.failures: Counter[int] = Counter()
        """How often the model's server failed on a line."""
        self.policies = 0
        """How many others came into force."""
        self._troubles = 0
        """In a row, without a result in between."""
        self._paused_until = 0.0
        self._all_read = False
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Raises ``Unauthenticated`` where the caller's key is not accepted any more."""
        try:
            while True:
                await self._fill()
                if self._error is not None:
                    raise self._error
                if self._all_read and not len(self.queue):
                    return
                if self._may_start():
                    await self._pace.turn()
                    self._start_line()
                else:
                    await self._wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def policy_changed(self) -> None:
        """Whatever lines wait for may be over: they are tried again."""
        self.policies += 1
        self._troubles, self._paused_until = 0, 0.0
        self.queue.put_off_no_more()
        self._changed.set()

    async def _fill(self) -> None:
        """Read lines ahead of their turn."""
        while (
            not self._all_read
            and self.queue.waiting < FETCHED // 2
            and self.queue.waiting_size < FETCHED_SIZE
        ):
            try:
                lines = await asyncio.to_thread(
                    self._table.pending, self._batch.id, self._model, self.queue.last, FETCHED
                )
            except DatabaseError as error:
                log.warning("lines of batch %s cannot be read: %s", self._batch.id, error)
                await asyncio.sleep(DATABASE_RETRY)
                return
            self.queue.add(lines)
            self._all_read = not lines

    def _may_start(self) -> bool:
        now, next_at = time.monotonic(), self.queue.next_at()
        if next_at is None or next_at > now or now < self._paused_until:
            return False
        return self.window.room(len(self.queue.running), self._host.settings().max_concurrency)

    def _start_line(self) -> None:
        line = self.queue.take(time.monotonic()) if self._may_start() else None
        if line is None:
            return
        settings = self._host.settings()
        paid = self._batch.request_id(line.number) in self._paid
        run = LineRun(
            self,
            line,
            self.window.start(),
            price_factor=0.0 if paid else settings.price_factor,
            max_utilization=settings.max_utilization,
        )
        run.task = asyncio.create_task(self._run_line(run))
        self._tasks.add(run.task)
        run.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
        self._changed.set()

    async def _wait(self) -> None:
        """Until a line has ended, or one that was put off may run."""
        next_at = self.queue.next_at()
        self._changed.clear()
        seconds = None
        most = self._host.settings().max_concurrency
        if next_at is not None and self.window.room(len(self.queue.running), most):
            seconds = max(0.01, max(next_at, self._paused_until) - time.monotonic())
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _run_line(self, run: LineRun) -> None:
        number = run.line.number
        try:
            principal = self._host.holder(self._batch.creator)
        except AuthUnavailable as error:
            self._put_off(run, error)
            return
        except Unauthenticated:
            self.queue.give_back(number, 0.0)
            raise
        try:
            answer = await self._host.answer(self._request(run, principal))
        except asyncio.CancelledError:
            if not run.reclaimed:
                raise
            self._host.count("reclaimed")
            self.window.congested(run.started)
            self.queue.give_back(number, time.monotonic())
            return
        if not run.is_final(answer.error):
            self._repeat(run, answer)
            return
        result = result_of(
            self._batch.id, run.line, self._batch.request_id(number), answer.status, answer.body
        )
        await self._writer.add(result)
        self.queue.done(number)
        self.failures.pop(number, None)
        self._troubles = 0

    def _repeat(self, run: LineRun, answer: LineAnswer) -> None:
        if counts(answer.error):
            self.failures[run.line.number] += 1
        self._host.count("repeated")
        self._put_off(run, answer.error)

    def _put_off(self, run: LineRun, error: GatewayError | None) -> None:
        """For want of capacity it alone waits; where something is wrong, no other line starts until later, either."""
        now = time.monotonic()
        self.window.congested(run.started)
        if isinstance(error, Overloaded):
            self.queue.give_back(run.line.number, now + BACKOFF.first)
            return
        if run.outdated:
            self.queue.give_back(run.line.number, now)
            return
        if now >= self._paused_until:
            self._troubles += 1
            self._paused_until = now + delay_after(error, self._troubles)
        self.queue.give_back(run.line.number, self._paused_until)

    def _request(self, run: LineRun, principal: Principal) -> LineRequest:
        batch = self._batch
        return LineRequest(
            request_id=batch.request_id(run.line.number),
            endpoint=batch.endpoint,
            body=run.line.body.encode(),
            principal=principal,
            user_agent=batch.creator.user_agent,
            line=run,
        )


class Window:
    """How many lines run side by side: found by trying, as TCP finds the rate of a path it knows nothing of.

    Additive increase, multiplicative decrease (Chiu and Jain 1989), with TCP's slow start (RFC 5681).

    It grows while it is used up and lines run without a wait, and halves where there is no capacity: once for all lines
    that were on their way then.
    """

    def __init__(self) -> None:
        self._size = float(FIRST_WINDOW)
        self._doubling = True
        self._halved_at = 0
        self._started = 0

    def room(self, running: int, most: int) -> bool:
        return running < min(int(self._size), most)

    def start(self) -> int:
        """A line starts. Its number among all that have."""
        self._started += 1
        return self._started

    def went_well(self, running: int, *, waited: bool) -> None:
        """A line got its place, after a wait or at once, while ``running`` did; it counts itself."""
        if waited:
            self._doubling = False
        elif running >= int(self._size):
            self._size += 1.0 if self._doubling else 1.0 / self._size

    def congested(self, started: int) -> None:
        """Line ``started`` found no capacity, or had to give its place back."""
        self._doubling = False
        if started > self._halved_at:
            self._size = max(1.0, self._size / 2)
            self._halved_at = self._started
