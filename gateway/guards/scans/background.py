"""Guards that only flag: they scan requests and answers in the background.

Nothing waits for them. They start when the caller has the whole answer, so that they delay neither; the verdict comes
after the request has ended, and is added to its receipt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.findings import Finding
from gateway.guards.guards import Guard
from gateway.guards.scanners.scanner import Origin, Unscanned
from gateway.guards.scans.batch_scan import BatchScan
from gateway.guards.scans.inspection import Inspection
from gateway.guards.scans.review import Review
from gateway.guards.texts.seams import apart
from gateway.observe.metrics import Metrics
from gateway.types import Call, Json, Receipt

log = logging.getLogger(__name__)

MAX_PENDING = 256
"""Requests and answers that may wait for a verdict; those beyond are recorded as unscanned."""
MAX_CHARACTERS = 8_000_000
"""Of all that wait."""
AT_ONCE = 4
"""Slow checks at once: the model's queue is for requests that callers wait for."""
REST = 0.01
"""Seconds between two pieces of a text in the fast check, each of which takes about as long."""
SECONDS_TO_CLOSE = 3.0
CROWDED, STOPPING = "too many wait for a verdict", "the gateway is stopping"

Keep = Callable[[str, Receipt], None]
"""Takes a tenant and a receipt that is to be written again."""


@dataclass(slots=True)
class ScanInput:
    """What is to be scanned."""

    texts: Sequence[tuple[str, Origin]] = ()
    seams: Sequence[tuple[str, Origin]] = ()
    """Of its texts, see ``gateway.guards.texts.seams``."""
    lengths: Sequence[int] = ()
    """Characters that count together for a limit: a request's, or those of each choice of an answer."""
    unread: Sequence[str] = field(default=())
    """Why some of it cannot be scanned: ``token_ids``."""
    no_text: Sequence[str] = ()
    """What of it is no text at all: ``input_audio``, ``file`` …"""


class BackgroundScans:
    """One policy generation's background scans. ``aclose`` it before the backends, which a judge calls."""

    def __init__(
        self, metrics: Metrics, keep: Keep, review: Review | None = None, *, most: int = MAX_PENDING
    ) -> None:
        self._metrics = metrics
        self._keep = keep
        self.review = review or Review(metrics)
        self._most = most
        self._turn = asyncio.Semaphore(1)
        """For the fast check, which runs on the event loop: one text at a time."""
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._characters = 0
        self._closed = False

    def of(
        self, call: Call, guards: Sequence[Guard], direction: Literal["input", "output"]
    ) -> BackgroundScan:
        """For one request, or one answer."""
        return BackgroundScan(
            self, call, [Inspection(guard, direction, self._metrics, call) for guard in guards], direction
        )

    async def idle(self) -> None:
        """Wait until nothing is in flight."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self) -> None:
        """Wait a few seconds for what is in flight, then cancel it; nothing more is accepted."""
        self._closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SECONDS_TO_CLOSE)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def begin(self, scan: BackgroundScan, read: Callable[[], ScanInput]) -> str:
        """Start a scan. Returns why it cannot; empty if it has."""
        if self._closed:
            return STOPPING
        if len(self._tasks) >= self._most:
            return CROWDED
        task = asyncio.create_task(self._run(scan, read), name="flags")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return ""

    async def _run(self, scan: BackgroundScan, read: Callable[[], ScanInput]) -> None:
        characters = 0
        try:
            given = read()
            characters = sum(len(text) for text, _ in (*given.texts, *given.seams))
            crowded = self._characters > 0 and self._characters + characters > MAX_CHARACTERS
            self._characters += characters
            if crowded:
                scan.miss(CROWDED)
            else:
                await scan.run(given, self._turn, self._slots)
        except asyncio.CancelledError:
            scan.miss(STOPPING)
            raise
        except Exception as error:  # the error's message may hold the text
            log.error("guards that flag failed with %s", type(error).__name__)
            scan.miss("failed")
        finally:
            self._characters -= characters
            scan.finish()
            # A receipt without a trace is kept later, or belongs to an answer whose callers have their own.
            if "trace" in scan.call.receipt.notes:
                self._keep(scan.call.principal.tenant, scan.call.receipt)


class BackgroundScan:
    """Guards that only flag on one request, or one answer. They are in its receipt, as pending, from the start."""

    def __init__(
        self,
        flags: BackgroundScans,
        call: Call,
        inspections: Sequence[Inspection],
        direction: Literal["input", "output"],
    ) -> None:
        self.call = call
        self._flags = flags
        self._stage = f"guard_{direction}"
        self._pending = list(inspections)
        self._inspections = tuple(inspections)
        self._given = False
        self._note()

    def start(self, read: Callable[[], ScanInput]) -> None:
        """In the background, once; never raises, never waits."""
        if self._given:
            return
        self._given = True
        if why := self._flags.begin(self, read):
            self.miss(why)
            self.finish()

    async def run(self, given: ScanInput, turn: asyncio.Semaphore, slots: asyncio.Semaphore) -> None:
        """``turn`` is held during fast checks, one of ``slots`` during slower ones."""
        scans: list[tuple[BatchScan, int]] = []
        if given.no_text:
            self.call.receipt.note(self._stage, unread=[*given.no_text])
        for inspection in self._inspections:
            for reason in given.unread:
                inspection.missed(reason)
            limit = inspection.guard.limit
            if limit is not None:
                inspection.found([Finding("length", limit, one) for one in given.lengths if one > limit])
                continue
            origins = inspection.guard.origins
            inspection.skipped = frozenset(origin for _, origin in given.texts) - origins
            if mine := [(text, origin) for text, origin in given.texts if origin in origins]:
                joined = [one for one in given.seams if one[1] in origins] if inspection.guard.joins else []
                scans.append((BatchScan(inspection, [*mine, *joined], rest=REST), len(mine)))
        for scan, _ in scans:
            async with nullcontext() if scan.is_offloaded else turn:
                await self._bounded(scan, scan.look())
        for scan, own in scans:
            if scan.is_open:
                async with slots:
                    await self._bounded(scan, scan.decide())
            findings = apart(scan.findings, own)
            for found in findings:
                scan.inspection.found(found)
            self._flags.review.sample(self.call, scan.inspection, scan.texts, findings)
            self._pending.remove(scan.inspection)
            self._note()

    def miss(self, why: str) -> None:
        """Those that have no verdict yet will have none."""
        for inspection in self._pending:
            inspection.missed(why)

    def finish(self) -> None:
        """Nothing is pending any more."""
        self._pending.clear()
        for inspection in self._inspections:
            self._flags.review.tell(self.call, inspection)
        self._note()

    async def _bounded(self, scan: BatchScan, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except Unscanned as error:
            scan.give_up()
            scan.inspection.missed(str(error))

    def _note(self) -> None:
        facts: dict[str, Json] = {
            inspection.guard.name: {
                **inspection.facts(),
                **({"pending": True} if inspection in self._pending else {}),
            }
            for inspection in self._inspections
        }
        # In place: callers that share an answer share this object in their receipts.
        self.call.receipt.notes.setdefault(self._stage, {}).setdefault("guards", {}).update(facts)
