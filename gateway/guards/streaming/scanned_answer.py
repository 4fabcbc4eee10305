"""The texts of an answer before its guards: which scans are due, what they find, and where the answer is cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.findings import Finding
from gateway.guards.guards import Guard
from gateway.guards.scanners.scanner import Origin, Unscanned
from gateway.guards.scans.batch_scan import BatchScan, at_once
from gateway.guards.scans.inspection import Inspection
from gateway.guards.streaming.cut import Cut
from gateway.guards.streaming.guarded_choice import GuardedChoice
from gateway.guards.streaming.scan_cursor import Mode, ScanCursor
from gateway.guards.streaming.text_stream import Scan, TextStream
from gateway.guards.texts.deltas import is_json
from gateway.observe.metrics import Metrics
from gateway.types import Call

ORIGIN: Origin = "answer"
PATIENCE = 0.25
"""Seconds in which the character may come that decides whether a finding at the very end is one."""


class ScannedAnswer:
    """``look`` runs the fast checks of what is due; what ``has_open`` then is for ``scan``, which awaits the slow ones.

    The way of a text through it, with the methods in order (``ScanCursor`` has the states of one guard over one text):

    ======================= ============================================== ====================================
    step                    what happens                                   what follows
    ======================= ============================================== ====================================
    ``feed``                its chunk is queued in its choice; the text    ``scan``
                            is added to its stream, which has changed
    ``look``                for each guard whose scan of a changed stream  decided: ``_conclude``;
                            is due, the fast check runs                    undecided: ``has_open``
    ``scan``                ``look``, and what it leaves open:             the next two
    … ``hold``, windowed    the slow check is awaited, all guards at once  ``_conclude``
    … ``optimistic``        the slow check runs in a task; until it ends   ``wake``, then ``_collect`` concludes
                            the guard starts no other scan                 and the stream has changed again
    ``_conclude``           the cursor advances; certain findings are      ``cut``, edits, or nothing
                            blocked, edited or counted
    … uncertain             a timer of ``PATIENCE`` seconds starts         more text, or ``_on_silence``
    … not scanned           ``on_error``: ``block`` cuts, ``allow``        ``cut``, or as if nothing was found
                            advances
    ``release``             chunks whose texts are cleared leave           the caller
    ======================= ============================================== ====================================
    """

    def __init__(
        self,
        call: Call,
        guards: Sequence[Guard],
        metrics: Metrics,
        wake: Callable[..., None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``wake`` is called when there is something to ``scan`` for, though no chunk has come."""
        self.cut: Cut | None = None
        self._call = call
        self._metrics = metrics
        self._wake = wake
        self._clock = clock
        self._inspections = [Inspection(guard, "output", metrics, call) for guard in guards]
        self._limits = [one for one in self._inspections if one.guard.limit is not None]
        self._exceeded: set[tuple[str, int]] = set()
        self._scanning = [(one, self._mode(one)) for one in self._inspections if one.guard.limit is None]
        self._optimistic = any(mode == "optimistic" for _, mode in self._scanning)
        self.holds = any(self._mode(one) == "hold" for one in self._inspections)
        """Nothing of a choice leaves before it is complete."""
        self.delays = self.holds or any(mode == "windowed" for _, mode in self._scanning)
        """Its texts leave later than they come."""
        self._choices: dict[int, GuardedChoice] = {}
        self._changed: dict[tuple[int, str], TextStream] = {}
        """Streams, by choice and channel, of which a scan may be due."""
        self._open: list[Scan] = []
        """What the fast checks left undecided."""
        self._in_flight: dict[Inspection, tuple[asyncio.Task[Sequence[Finding]], Scan]] = {}

    def _mode(self, inspection: Inspection) -> Mode:
        return inspection.guard.config.stream if self._call.request.stream else "hold"

    @property
    def is_due(self) -> bool:
        """There may be something to ``look`` for, or to ``release``."""
        return bool(self._changed) or not self.delays or self.cut is not None

    @property
    def has_open(self) -> bool:
        """There is something to ``scan`` that ``look`` leaves open."""
        return bool(self._open)

    async def scan(self) -> None:
        """Run the scans that are due. ``cut`` is set when one ends the answer."""
        if self._open:
            await self._scan_open()
        self.look()
        if self._open:
            await self._scan_open()

    def look(self) -> None:
        """Run the fast checks of the scans that are due."""
        if self._in_flight:
            self._collect()
        changed, self._changed = self._changed, {}
        for (index, channel), stream in changed.items():
            complete = self._choices[index].complete
            for cursor in stream.cursors:
                last = complete or (stream.over and cursor.mode != "hold")
                if self.cut is not None:
                    return
                if not cursor.is_due(stream.end, last=last):
                    continue
                if cursor.mode == "optimistic" and self._is_busy(cursor.inspection):
                    self._changed[index, channel] = stream
                    continue
                start = cursor.start
                scan = Scan(index, stream, cursor, stream.text(start), start, stream.end, last)
                if not self._scan_fast(scan):
                    self._open.append(scan)
            stream.settle()

    def stop(self) -> None:
        """End the scans that are in flight."""
        if not self._optimistic:
            return
        for choice in self._choices.values():
            for stream in choice.streams.values():
                for cursor in stream.cursors:
                    cursor.resolve()
        for task, _ in self._in_flight.values():
            task.cancel()

    async def aclose(self) -> None:
        """``stop``, and wait until they have ended."""
        self.stop()
        if self._in_flight:
            await asyncio.gather(*(task for task, _ in self._in_flight.values()), return_exceptions=True)

    def _begin(self, choice: GuardedChoice, channel: str) -> TextStream:
        cursors = [ScanCursor(*one) for one in self._scanning]
        stream = TextStream(channel, cursors, is_json=is_json(channel, self._call.request))
        choice.streams[channel] = stream
        return stream

    def _complete(self, index: int, choice: GuardedChoice) -> None:
        choice.complete = True
        self._changed.update(((index, channel), stream) for channel, stream in choice.streams.items())

    def _is_busy(self, inspection: Inspection) -> bool:
        """An optimistic scan is in flight, or about to be."""
        return inspection in self._in_flight or any(one.cursor.inspection is inspection for one in self._open)

    async def _scan_open(self) -> None:
        """Run the slow checks, in the request's own task: who is asked for them is told by it for whom they are."""
        scans, self._open = self._open, []
        if self.cut is not None:
            return
        waiting = []
        for scan in scans:
            if scan.cursor.mode == "optimistic":
                task = asyncio.create_task(self._scan_slowly(scan))
                task.add_done_callback(self._wake)
                self._in_flight[scan.cursor.inspection] = (task, scan)
            else:
                waiting.append(scan)
        if waiting:
            await at_once(*(self._scan_and_conclude(scan) for scan in waiting))
            for scan in waiting:
                scan.stream.settle()

    def _scan_fast(self, scan: Scan) -> bool:
        """Whether the fast check decided it."""
        if scan.is_long:
            return False
        try:
            verdict = scan.cursor.inspection.quick(scan.text, ORIGIN)
        except Unscanned as error:
            self._on_unscanned(scan, error)
            return True
        if verdict is None:
            return False
        self._conclude(scan, verdict.findings)
        return True

    async def _scan_slowly(self, scan: Scan) -> Sequence[Finding]:
        """Raises ``Unscanned``."""
        inspection = scan.cursor.inspection
        if scan.is_long:
            batch = BatchScan(inspection, [(scan.text, ORIGIN)])
            await batch.look()
            await batch.decide()
            return batch.findings[0]
        return (await inspection.thorough([scan.text], ORIGIN))[0].findings

    async def _scan_and_conclude(self, scan: Scan) -> None:
        try:
            findings = await self._scan_slowly(scan)
        except Unscanned as error:
            self._on_unscanned(scan, error)
        else:
            self._conclude(scan, findings)

    def _collect(self) -> None:
        """Conclude the scans in flight that have ended."""
        for inspection, (task, scan) in list(self._in_flight.items()):
            if not task.done():
                continue
            del self._in_flight[inspection]
            self._changed[scan.choice, scan.stream.channel] = scan.stream
            try:
                findings = task.result()
            except Unscanned as error:
                self._on_unscanned(scan, error)
            else:
                self._conclude(scan, findings)

    def _conclude(self, scan: Scan, findings: Sequence[Finding]) -> None:
        """Act on what a scan found."""
        cursor = scan.cursor
        certain = cursor.conclude(findings, scan.start, scan.end, last=scan.last)
        if not certain:
            if cursor.mode == "optimistic" and any(scan.start + one.end >= scan.end for one in findings):
                loop = asyncio.get_running_loop()
                cursor.uncertain = loop.call_later(PATIENCE, self._on_silence, scan, findings)
            return
        inspection = cursor.inspection
        inspection.found(cursor.uncounted(certain))
        guard = inspection.guard
        edits = [one for one in certain if guard.action_on(one) in ("redact", "mask")]
        # What an optimistic guard has shown cannot be changed any more.
        cutting = edits if cursor.mode == "optimistic" else []
        if blocking := [one for one in certain if guard.action_on(one) == "block" or one in cutting]:
            first = min(finding.start for finding in blocking)
            self._cut(inspection, "content_filter", scan.choice, scan.stream, first)
        elif edits:
            scan.stream.replace(edits)

    def _on_silence(self, scan: Scan, findings: Sequence[Finding]) -> None:
        """Nothing came after what was uncertain: it is what it looks like."""
        if self.cut is None and scan.stream.end == scan.end:
            self._conclude(replace(scan, last=True), findings)
            self._wake()

    def _on_unscanned(self, scan: Scan, error: Unscanned) -> None:
        inspection = scan.cursor.inspection
        inspection.missed(str(error))
        if inspection.guard.config.refuses_unjudged:
            self._cut(inspection, "guard_unavailable", scan.choice, scan.stream, scan.cursor.cleared)
        else:
            scan.cursor.advance(scan.end, last=scan.last)

    def _measure(self, index: int, choice: GuardedChoice, stream: TextStream) -> None:
        for inspection in self._limits:
            over = choice.characters - (inspection.guard.limit or 0)
            if over > 0 and (inspection.guard.name, index) not in self._exceeded:
                self._exceeded.add((inspection.guard.name, index))
                inspection.found([Finding("length", stream.end - over, stream.end)])
                if inspection.guard.config.action == "block":
                    self._cut(inspection, "content_filter", index, stream, stream.end - over)

    def _cut(
        self, inspection: Inspection, reason: str, index: int, stream: TextStream, position: int
    ) -> None:
        """End the answer, because of what begins at ``position`` of ``stream``."""
        if self.cut is not None:
            return
        name = inspection.guard.name
        leaked = max(stream.released - position, 0)
        arrived = stream.arrived(position)
        seconds = self._clock() - arrived if arrived is not None else 0.0
        seen_at = stream.seen_at(position)
        self.cut = Cut(inspection.guard, reason, index, stream.channel, seen_at, leaked, seconds)
        self._metrics.guard_cuts.labels(name).inc()
        self._metrics.guard_time_to_cut.labels(name).observe(seconds)
        self._metrics.guard_leaked.labels(name).inc(leaked)
