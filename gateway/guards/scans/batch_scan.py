"""Texts of any length before one guard, by both of its checks."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from operator import attrgetter
from typing import Any

from gateway.findings import Finding
from gateway.guards.scanners.pieces import BATCH_PIECES, PIECE, Piece, PieceCursor, batches
from gateway.guards.scanners.scanner import Origin, Unscanned, Verdict
from gateway.guards.scans.inspection import Inspection

MAX_FINDINGS = 100_000
"""Of one guard in all texts: more would block the event loop for too long."""


class TooMuchFound(Unscanned):
    """Texts were scanned, and there are more findings than can be handled."""


class BatchScan:
    """Several texts before one guard: the fast check for all of them, then the slower one for the rest, by origin."""

    def __init__(
        self,
        inspection: Inspection,
        texts: Sequence[tuple[str, Origin]],
        *,
        rest: float = 0.0,
        one_is_enough: bool = False,
        every_text: bool = False,
    ) -> None:
        """``rest``: seconds to yield the event loop between two pieces.

        ``one_is_enough``: pieces after one in which something was found need not be scanned. ``every_text``: not even
        where the guard refuses for what was found.
        """
        self.inspection = inspection
        self._rest = rest
        self._one_is_enough = one_is_enough and not every_text
        self._every_text = every_text
        self.texts = texts
        guard = inspection.guard
        self._is_exact = guard.scanner.longest > 0
        self._characters = sum([len(text) for text, _ in texts])
        self.is_offloaded = guard.offloads(self._characters)
        """Whether the fast check works in another process."""
        self._piece = guard.offload.piece if guard.offload is not None and self.is_offloaded else PIECE
        self._found: list[list[Finding]] = [[] for _ in texts]
        self._hits = 0
        self._open: dict[Origin, list[Piece]] = {}

    async def look(self) -> bool:
        """Whether the fast check found something. Raises ``Unscanned``."""
        if self._characters <= PIECE and not self.is_offloaded:  # as most are
            await self._turn()
            for number, (text, origin) in enumerate(self.texts):
                if text:
                    self._collect_whole(number, text, origin, self.inspection.quick(text, origin))
            return self._hits > 0
        for batch in self._short_texts():
            verdicts = await self._quick([(text, origin) for _, text, origin in batch])
            for (number, text, origin), verdict in zip(batch, verdicts, strict=True):
                self._collect_whole(number, text, origin, verdict)
            if self._is_decided():
                return True
        await self._look_at_long_texts()
        return self._hits > 0

    async def _look_at_long_texts(self) -> None:
        """Those of more than one piece."""
        fresh = self._cursors()
        begun: deque[PieceCursor] = deque()
        while batch := self._batch(begun, fresh):
            verdicts = await self._quick([(cursor.piece.text, cursor.origin) for cursor in batch])
            longer = []
            for cursor, verdict in zip(batch, verdicts, strict=True):
                self._collect(cursor.piece, cursor.origin, verdict)
                if cursor.goes_on(verdict.findings if verdict and self._is_exact else ()):
                    longer.append(cursor)
            begun.extendleft(reversed(longer))
            if self._is_decided():
                return

    def _is_decided(self) -> bool:
        """Whether what was found is enough; then nothing is left open."""
        if self._hits and self._one_is_enough:
            self._open = {}
            return True
        return False

    async def _quick(self, pieces: Sequence[tuple[str, Origin]]) -> list[Verdict | None]:
        if self.is_offloaded:
            return await self.inspection.quick_offloaded(pieces)
        await self._turn()
        return self.inspection.quick_all(pieces)

    async def decide(self) -> None:
        """Raises ``Unscanned``."""
        if len(self._open) == 1:
            for origin, pieces in self._open.items():
                await self._ask(origin, pieces)
        elif self._open:
            await at_once(*(self._ask(origin, pieces) for origin, pieces in self._open.items()))
        self._open = {}

    @property
    def is_open(self) -> bool:
        """Whether the fast check left something undecided."""
        return bool(self._open)

    def give_up(self) -> None:
        self._open = {}

    @property
    def findings(self) -> list[tuple[Finding, ...]]:
        """For each text, what was found in it so far."""
        return [tuple(found) for found in self._found]

    async def _turn(self) -> None:
        if self._rest:
            await asyncio.sleep(self._rest)
        await self.inspection.turn()

    def _short_texts(self) -> Iterator[list[tuple[int, str, Origin]]]:
        """Texts of one piece, with their numbers, in batches of a piece's characters."""
        batch: list[tuple[int, str, Origin]] = []
        characters = 0
        for number, (text, origin) in enumerate(self.texts):
            size = len(text)
            if not 0 < size <= self._piece:
                continue
            characters += size
            if batch and (characters > self._piece or len(batch) == BATCH_PIECES):
                yield batch
                batch, characters = [], size
            batch.append((number, text, origin))
        if batch:
            yield batch

    def _cursors(self) -> Iterator[PieceCursor]:
        overlap = self.inspection.guard.window
        for number, (text, origin) in enumerate(self.texts):
            if len(text) > self._piece:
                yield PieceCursor(number, text, origin, self._piece, overlap)

    def _batch(self, begun: deque[PieceCursor], fresh: Iterator[PieceCursor]) -> list[PieceCursor]:
        """The next pieces, each of another text: of one text, what is found says where its next piece begins."""
        batch: list[PieceCursor] = []
        characters = 0
        while len(batch) < BATCH_PIECES:
            cursor = begun.popleft() if begun else next(fresh, None)
            if cursor is None:
                break
            characters += len(cursor.piece.text)
            if batch and characters > self._piece:
                begun.appendleft(cursor)
                break
            batch.append(cursor)
        return batch

    async def _ask(self, origin: Origin, pieces: list[Piece]) -> None:
        for batch in batches(pieces):
            await self.inspection.turn()  # scanners compute before they ask a model
            verdicts = await self.inspection.thorough([piece.text for piece in batch], origin)
            for piece, verdict in zip(batch, verdicts, strict=True):
                self._take(piece, verdict)
            if self._hits and self.inspection.guard.config.action == "block" and not self._every_text:
                return  # one finding is enough, and the rest might time out

    def _collect_whole(self, number: int, text: str, origin: Origin, verdict: Verdict | None) -> None:
        if verdict is None or verdict.findings:
            self._collect(Piece(number, 0, 0, len(text) + 1, text), origin, verdict)

    def _collect(self, piece: Piece, origin: Origin, verdict: Verdict | None) -> None:
        if verdict is None:
            self._open.setdefault(origin, []).append(piece)
        elif verdict.findings:
            self._take(piece, verdict)

    def _take(self, piece: Piece, verdict: Verdict) -> None:
        for finding in verdict.findings:
            start, end = piece.start + finding.start, piece.start + finding.end
            # Past its borders a piece lacks context that its neighbour has. Spans of a model's own windows
            # are taken as they come.
            if not self._is_exact or (end > piece.behind and start < piece.border):
                _insert(self._found[piece.number], finding.moved(start, end))
                self._hits += 1
        if self._hits > MAX_FINDINGS:
            raise TooMuchFound(f"more than {MAX_FINDINGS} findings")


async def at_once(*work: Coroutine[Any, Any, None]) -> None:
    """Concurrently; the first failure cancels the others and is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _insert(whole: list[Finding], finding: Finding) -> None:
    """Keep findings in order and without overlaps: those that overlap become one, named as the longest."""
    if not whole or whole[-1].end <= finding.start:  # nearly always
        whole.append(finding)
        return
    first = bisect_right(whole, finding.start, key=attrgetter("end"))
    last = bisect_left(whole, finding.end, key=attrgetter("start"))
    for other in whole[first:last]:
        finding = finding.with_other(other)
    whole[first:last] = [finding]
