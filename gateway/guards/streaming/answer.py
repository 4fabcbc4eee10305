"""An answer under guard: what of it may leave, and when it is to be cut.

Nothing of a text leaves before all guards that hold or keep a window have cleared it; optimistic ones scan beside.
What a client can have seen of something that a guard blocks, counted from its first character:

- ``hold``: nothing;
- ``windowed``: nothing, of whatever is no longer than the window;
- ``optimistic``: itself, at most ``interval`` characters after it, and what arrived while the scan ran.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from gateway.findings import Finding
from gateway.guards.actions.deltas import is_json, is_whole, readable, said, single
from gateway.guards.actions.guards import Guard
from gateway.guards.actions.inspection import Inspection
from gateway.guards.actions.judgement import Judgement, at_once
from gateway.guards.actions.texts import put
from gateway.guards.scanners.scanner import Origin, Unscanned
from gateway.guards.streaming.choice import Choice, Held
from gateway.guards.streaming.logprobs import spell
from gateway.guards.streaming.revocation import Cut, last_words
from gateway.guards.streaming.window import Lane, Mode, Scan, Watch
from gateway.observe.metrics import Metrics
from gateway.types import Call, Chunk, Json, Usage

ORIGIN: Origin = "answer"
PATIENCE = 0.25
"""Seconds in which the character may come that tells whether a finding at the very end is one."""
_LARGE = 64
"""Characters of a chunk that is not held as a whole until its last may leave."""


_NAMES = frozenset({"id", "system_fingerprint", "service_tier", "provider"})


def _is_for_machines(name: str, value: Json) -> bool:
    """Numbers and names. What a provider of the caller's own dialect tells of an answer are counts, ids and times."""
    return name == "native" or (
        name in _NAMES if isinstance(value, str) else not isinstance(value, list | Mapping)
    )


class Answer:
    """``wake`` is called when there is something to ``scan`` for, though no chunk has come."""

    def __init__(
        self,
        call: Call,
        guards: Sequence[Guard],
        metrics: Metrics,
        wake: Callable[..., None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.cut: Cut | None = None
        self.scanned = False
        """To the end, by every guard."""
        self._call = call
        self._metrics = metrics
        self._wake = wake
        self._clock = clock
        self._streams = call.request.stream
        self._inspections = [Inspection(guard, "output", metrics, call) for guard in guards]
        self._limits = [one for one in self._inspections if one.guard.limit is not None]
        self._exceeded: set[tuple[str, int]] = set()
        self._watched = [(one, self._mode(one)) for one in self._inspections if one.guard.limit is None]
        self._optimistic = any(mode == "optimistic" for _, mode in self._watched)
        self.holds = any(self._mode(one) == "hold" for one in self._inspections)
        self._choices: dict[int, Choice] = {}
        self._passing: list[Chunk] = []
        self._stale: dict[tuple[int, str], Lane] = {}
        """Texts that may be due for a scan."""
        self._running: dict[Inspection, tuple[asyncio.Task[Sequence[Finding]], Scan]] = {}
        self._left_out: set[str] = set()
        self._usage: Usage | None = None
        self._envelope: Mapping[str, Json] = {}
        for inspection in self._inspections:
            metrics.guard_streams.labels(inspection.guard.name).inc()

    def _mode(self, inspection: Inspection) -> Mode:
        return inspection.guard.config.stream if self._streams else "hold"

    @property
    def is_holding(self) -> bool:
        return any(choice.queue for choice in self._choices.values())

    @property
    def is_settled(self) -> bool:
        """Nothing is held, and no scan is under way."""
        return not (self._running or self._stale or self.is_holding)

    def feed(self, chunk: Chunk) -> None:
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.envelope:
            # The sources of a search, or the answer once more, may hold any text, and are not scanned.
            machine = {name: value for name, value in chunk.envelope.items() if _is_for_machines(name, value)}
            if len(machine) < len(chunk.envelope):
                self._left_out |= chunk.envelope.keys() - machine.keys()
                chunk = replace(chunk, envelope=machine)
            self._envelope = chunk.envelope
        if chunk.delta is None:
            self._passing.append(chunk)
            return
        delta, left_out = readable(chunk.delta)
        if delta is not chunk.delta:
            chunk = replace(chunk, delta=delta)
            self._left_out |= left_out
        texts = said(delta)
        if chunk.logprobs is not None and not spell(
            chunk.logprobs, {channel: text for channel, _, text in texts}
        ):
            chunk = replace(chunk, logprobs=None)
        choice = self._choices.get(chunk.index)
        if choice is None:
            choice = self._choices[chunk.index] = Choice()
        pieces = []
        now = self._clock() if texts else 0.0
        for channel, path, text in texts:
            lane = choice.lanes.get(channel)
            if lane is None:
                lane = choice.lanes[channel] = Lane(
                    channel,
                    [Watch(*one) for one in self._watched],
                    is_json=is_json(channel, self._call.request),
                )
            if lane.unescaping is not None and (plain := lane.unescaping.feed(text)) != text:
                chunk = replace(chunk, delta=put(chunk.delta, path, plain), logprobs=None)
                text = plain
            if lane is not choice.current:
                for one in choice.turn(lane):
                    self._stale[chunk.index, one.channel] = one
            lane.add(text, now)
            pieces.append((lane, path, text, lane.end))
            self._stale[chunk.index, channel] = lane
            choice.characters += len(text)
            if self._limits:
                self._measure(chunk.index, choice, lane)
        if chunk.finish_reason is not None:
            choice.last = True
            self._stale.update(((chunk.index, channel), lane) for channel, lane in choice.lanes.items())
            if pieces and self._optimistic:  # the text need not wait for the last scan; the end must
                rest = replace(chunk, delta={}, logprobs=None)
                choice.queue.append(Held(replace(chunk, finish_reason=None, usage=None), pieces))
                chunk, pieces = rest, []
        choice.queue.append(Held(chunk, pieces))

    def finish(self) -> None:
        """The answer is complete."""
        for index, choice in self._choices.items():
            choice.last = True
            self._stale.update(((index, channel), lane) for channel, lane in choice.lanes.items())

    async def scan(self) -> None:
        """Whatever is due; sets ``cut``."""
        self._collect()
        waiting = []
        stale, self._stale = self._stale, {}
        for (index, channel), lane in stale.items():
            complete = self._choices[index].last
            for watch in lane.watches:
                last = complete or (lane.over and watch.mode != "hold")
                if self.cut is not None:
                    return
                if not watch.is_due(lane.end, last=last):
                    continue
                if watch.inspection in self._running:
                    self._stale[index, channel] = lane
                    continue
                start = watch.start
                scan = Scan(index, lane, watch, lane.text(start), start, lane.end, last)
                if not self._look(scan):
                    if watch.mode == "optimistic":
                        task = asyncio.create_task(self._decide(scan))
                        task.add_done_callback(self._wake)
                        self._running[watch.inspection] = (task, scan)
                    else:
                        waiting.append(scan)
        if waiting and self.cut is None:
            await at_once(*(self._settle(scan) for scan in waiting))
        for lane in stale.values():
            lane.forget()

    def release(self) -> Iterator[Chunk]:
        """What may leave now, in order. What was cut in the meantime stays."""
        leaving = self._leaving()
        held = next(leaving, None)
        while held is not None:
            if self._running:
                self._collect()
            if self.cut is not None:
                return
            chunk = self._rendered(held)
            held = next(leaving, None)
            chunk.more = held is not None
            if chunk.delta is not None:
                choice = self._choices[chunk.index]
                choice.begun = True
                choice.finished = choice.finished or chunk.finish_reason is not None
            yield chunk

    def last_words(self) -> list[Chunk]:
        """The end of an answer that was cut."""
        cut = self.cut
        if cut is None:
            return []
        open_ = [index for index, choice in self._choices.items() if not choice.finished]
        begun = self._choices[cut.choice].begun
        return last_words(cut, self._call.request_id, open_, self._envelope, self._usage, begun=begun)

    def stop(self) -> None:
        """End the scans that are under way."""
        for choice in self._choices.values():
            for lane in choice.lanes.values():
                for watch in lane.watches:
                    watch.settle()
        for task, _ in self._running.values():
            task.cancel()

    async def aclose(self) -> None:
        """``stop``, and wait until they have ended."""
        self.stop()
        await asyncio.gather(*(task for task, _ in self._running.values()), return_exceptions=True)

    def note(self) -> None:
        """In the receipt; an answer that was not scanned to its end is never said to be."""
        unscanned = any(inspection.unscanned for inspection in self._inspections)
        self._call.receipt.note(
            "guard_output",
            guards={
                **self._call.receipt.notes.get("guard_output", {}).get("guards", {}),  # those that only flag
                **{one.guard.name: {**one.facts(), "stream": self._mode(one)} for one in self._inspections},
            },
            scanned=self.scanned and not unscanned and self.cut is None,
        )
        if self._left_out:
            self._call.receipt.note("guard_output", left_out=sorted(self._left_out)[:16])
        if self.cut is not None:
            self._call.receipt.note("guard_output", cut=self.cut.facts())

    def _look(self, scan: Scan) -> bool:
        """Whether the fast tier has settled it."""
        if scan.is_long:
            return False
        try:
            verdict = scan.watch.inspection.quick(scan.text, ORIGIN)
        except Unscanned as error:
            self._missed(scan, error)
            return True
        if verdict is None:
            return False
        self._judged(scan, verdict.findings)
        return True

    async def _decide(self, scan: Scan) -> Sequence[Finding]:
        if scan.is_long:
            judgement = Judgement(scan.watch.inspection, [(scan.text, ORIGIN)])
            await judgement.look()
            await judgement.decide()
            return judgement.findings[0]
        return (await scan.watch.inspection.thorough([scan.text], ORIGIN))[0].findings

    async def _settle(self, scan: Scan) -> None:
        try:
            findings = await self._decide(scan)
        except Unscanned as error:
            self._missed(scan, error)
        else:
            self._judged(scan, findings)

    def _collect(self) -> None:
        """Hear the scans beside the stream that have ended."""
        for inspection, (task, scan) in list(self._running.items()):
            if not task.done():
                continue
            del self._running[inspection]
            self._stale[scan.choice, scan.lane.channel] = scan.lane
            try:
                findings = task.result()
            except Unscanned as error:
                self._missed(scan, error)
            else:
                self._judged(scan, findings)

    def _judged(self, scan: Scan, findings: Sequence[Finding]) -> None:
        watch = scan.watch
        certain = watch.decided(findings, scan.start, scan.end, last=scan.last)
        watch.scan_ended(scan.end, last=scan.last)
        if not certain:
            if watch.mode == "optimistic" and any(scan.start + one.end >= scan.end for one in findings):
                watch.doubt = asyncio.get_running_loop().call_later(PATIENCE, self._silent, scan, findings)
            return
        watch.inspection.found(watch.fresh(certain))
        action = watch.inspection.guard.config.action
        if action == "block":
            first = min(finding.start for finding in certain)
            self._cut(watch.inspection, "content_filter", scan.choice, scan.lane, first)
        elif watch.inspection.guard.edits:
            scan.lane.replace(certain)

    def _silent(self, scan: Scan, findings: Sequence[Finding]) -> None:
        """Nothing came after what was in doubt: it is what it looks like."""
        if self.cut is None and scan.lane.end == scan.end:
            self._judged(replace(scan, last=True), findings)
            self._wake()

    def _missed(self, scan: Scan, error: Unscanned) -> None:
        inspection = scan.watch.inspection
        inspection.missed(str(error))
        if inspection.guard.config.refuses_unjudged:
            self._cut(inspection, "guard_unavailable", scan.choice, scan.lane, scan.watch.cleared)
        else:
            scan.watch.scan_ended(scan.end, last=scan.last)

    def _measure(self, index: int, choice: Choice, lane: Lane) -> None:
        for inspection in self._limits:
            over = choice.characters - (inspection.guard.limit or 0)
            if over > 0 and (inspection.guard.name, index) not in self._exceeded:
                self._exceeded.add((inspection.guard.name, index))
                inspection.found([Finding("length", lane.end - over, lane.end)])
                if inspection.guard.config.action == "block":
                    self._cut(inspection, "content_filter", index, lane, lane.end - over)

    def _cut(self, inspection: Inspection, reason: str, index: int, lane: Lane, place: int) -> None:
        if self.cut is not None:
            return
        name = inspection.guard.name
        leaked = max(lane.released - place, 0)
        arrived = lane.arrived(place)
        seconds = self._clock() - arrived if arrived is not None else 0.0
        self.cut = Cut(inspection.guard, reason, index, lane.channel, lane.seen_at(place), leaked, seconds)
        self._metrics.guard_cuts.labels(name).inc()
        self._metrics.guard_time_to_cut.labels(name).observe(seconds)
        self._metrics.guard_leaked.labels(name).inc(leaked)

    def _leaving(self) -> Iterator[Held]:
        passing, self._passing = self._passing, []
        for chunk in passing:
            yield Held(chunk, [])
        for choice in self._choices.values():
            if choice.queue:
                yield from self._free(choice)

    def _free(self, choice: Choice) -> Iterator[Held]:
        """Takes from the choice's queue what may leave."""
        if self.holds and not choice.last:
            return
        queue = choice.queue
        while queue:
            held = queue[0]
            if held.chunk.finish_reason is not None and not choice.is_judged():
                return
            if all(lane.free() >= end for lane, _, _, end in held.pieces):
                yield queue.popleft()
                continue
            if (
                len(held.pieces) == 1
                and len(held.pieces[0][2]) > _LARGE
                and not is_whole(held.pieces[0][0].channel)
            ):
                part = self._split(held)
                if part is not None:
                    yield part
            return

    def _split(self, held: Held) -> Held | None:
        """The part of a large chunk that may leave; ``held`` becomes the rest."""
        lane, path, text, end = held.pieces[0]
        free = lane.free() - (end - len(text))
        if free <= 0:
            return None
        chunk = held.chunk
        part = replace(chunk, delta=put(chunk.delta, path, text[:free]), finish_reason=None, logprobs=None)
        part.usage = None
        rest = single(lane.channel, text[free:])
        held.chunk = replace(chunk, delta=rest, logprobs=None)
        rest_path = said(rest)[0].path
        held.pieces = [(lane, rest_path, text[free:], end)]
        return Held(part, [(lane, path, text[:free], end - len(text) + free)])

    def _rendered(self, held: Held) -> Chunk:
        chunk = held.chunk
        delta = chunk.delta
        for lane, path, text, _ in held.pieces:
            fresh = lane.leave(text)
            if fresh != text:
                delta = put(delta, path, fresh)
        if delta is chunk.delta:
            return chunk
        return replace(chunk, delta=delta, logprobs=None)
