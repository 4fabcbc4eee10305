"""One guard at work on one request: its scans in two tiers, bounded in time, and what is told of them afterwards."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from gateway.guards.finding import Finding, Origin, Unscanned, Verdict
from gateway.guards.guards import Guard
from gateway.observe.metrics import Metrics
from gateway.types import Call, Json

log = logging.getLogger(__name__)

PIECE = 4000
"""Characters that are scanned at once; a longer text is cut, and others may run between its pieces."""
ONGOING = 16_000
"""Characters of one thing, longer than any window, that is seen as one."""
SHARE = PIECE
"""Characters that are given to the slower tier at once: each such share of a request has the guard's ``timeout``."""
_MOST = 256
"""Pieces of a share."""
PATIENCE = 3
"""Verdicts that fail to come for one answer or request before no more are waited for."""
_TIERS = ("none", "fast", "model", "judge")


class Inspection:
    """``direction`` is ``input`` or ``output``."""

    def __init__(
        self,
        guard: Guard,
        direction: Literal["input", "output"],
        metrics: Metrics,
        call: Call | None = None,
    ) -> None:
        """``call`` is the request that is inspected."""
        self.guard = guard
        self._call = call
        self.unscanned = ""
        """Why a text could not be judged; empty where all were."""
        self._direction = direction
        self._metrics = metrics
        self._labels: dict[str, int] = {}
        self._acted = False
        self._tier = "none"
        self._score = 0.0
        self._scans = 0
        self._misses = 0
        self._seconds = 0.0

    async def turn(self) -> None:
        """Wait until a piece may be scanned."""
        await self.guard.turns.take(self._call.principal.tenant if self._call is not None else "")

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        """The fast tier's verdict. None where it has none. Raises ``Unscanned``."""
        began = time.perf_counter()
        try:
            verdict = self.guard.scanner.quick(text, origin)
        except Exception as error:
            raise self._failed("fast", began, error) from None
        if verdict is None:
            self._timed("fast", began, "open")
        else:
            self._timed(verdict.tier, began, "found" if verdict.findings else "clean")
            self._hear(verdict)
        return verdict

    async def thorough(self, texts: Sequence[str], origin: Origin) -> list[Verdict]:
        """What the fast tier left open. Raises ``Unscanned``."""
        if self._misses >= PATIENCE:
            raise Unscanned("unavailable")
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self.guard.config.timeout):
                verdicts = await self.guard.scanner.thorough(texts, origin, self._call)
            if len(verdicts) != len(texts):
                raise Unscanned("not every text has a verdict")
        except Exception as error:
            raise self._failed("model", began, error) from None
        found = any(verdict.findings for verdict in verdicts)
        self._timed(verdicts[0].tier if verdicts else "model", began, "found" if found else "clean")
        for verdict in verdicts:
            self._hear(verdict)
        return verdicts

    async def judge(self, text: str, origin: Origin) -> Sequence[Finding]:
        """A text of any length, in both tiers. Raises ``Unscanned``."""
        judgement = Judgement(self, [(text, origin)])
        await judgement.look()
        await judgement.decide()
        return judgement.findings[0]

    def found(self, findings: Sequence[Finding]) -> None:
        """Count what is acted on."""
        self._acted = self._acted or bool(findings)
        for finding in findings:
            self._labels[finding.label] = self._labels.get(finding.label, 0) + 1
        if findings:
            labels = (self.guard.name, self._direction, self.guard.config.action)
            self._metrics.guard_hits.labels(*labels).inc(len(findings))

    def missed(self, reason: str) -> None:
        """A text was not judged."""
        self.unscanned = self.unscanned or reason
        self._misses += 1
        self._metrics.guard_unscanned.labels(self.guard.name, self._direction).inc()

    def facts(self) -> dict[str, Json]:
        """For the receipt: never a text."""
        config = self.guard.config
        refused = bool(self.unscanned) and config.refuses_unjudged
        facts: dict[str, Json] = {
            "direction": self._direction,
            "action": "block" if refused else config.action if self._acted else "pass",
            "labels": dict(self._labels),
            "tier": self._tier,
            "score": round(self._score, 3),
            "scans": self._scans,
            "seconds": round(self._seconds, 6),
        }
        return {**facts, "unscanned": self.unscanned} if self.unscanned else facts

    def _hear(self, verdict: Verdict) -> None:
        self._score = max(self._score, verdict.score, *(finding.score for finding in verdict.findings), 0.0)
        if verdict.tier not in _TIERS or _TIERS.index(verdict.tier) > _TIERS.index(self._tier):
            self._tier = verdict.tier if verdict.tier in _TIERS else "model"

    def _timed(self, tier: str, began: float, outcome: str) -> None:
        seconds = time.perf_counter() - began
        self._scans += 1
        self._seconds += seconds
        self._metrics.guard_scans.labels(self.guard.name, tier, outcome).inc()
        self._metrics.guard_seconds.labels(self.guard.name, tier).observe(seconds)

    def _failed(self, tier: str, began: float, error: Exception) -> Unscanned:
        self._timed(tier, began, "unscanned")
        if isinstance(error, TimeoutError):
            return Unscanned(f"no verdict within {self.guard.config.timeout:g} s")
        if isinstance(error, Unscanned):
            log.warning("guard '%s' could not judge a text: %s", self.guard.name, error)
            return Unscanned("unavailable")
        # What a bug says of itself may hold the text that it fell over.
        log.error("guard '%s' failed with %s", self.guard.name, type(error).__name__)
        return Unscanned("failed")


class _Piece(NamedTuple):
    text: int
    """Which of the texts it is of."""
    start: int
    behind: int
    """What ends before it was for the piece before to tell."""
    border: int
    """What begins past it is for the next one."""
    words: str


class Judgement:
    """Several texts before one guard: first the fast tier for all of them, then the rest in one call an origin."""

    def __init__(
        self, inspection: Inspection, texts: Sequence[tuple[str, Origin]], *, rest: float = 0.0
    ) -> None:
        """``rest``: seconds between two pieces in which the event loop is left to others."""
        self.inspection = inspection
        self._rest = rest
        self._texts = texts
        self._overlap = min(inspection.guard.window, PIECE)
        self._step = max(PIECE - 2 * self._overlap, self._overlap)
        self._is_exact = inspection.guard.scanner.longest > 0
        self._found: list[list[Finding]] = [[] for _ in texts]
        self._open: dict[Origin, list[_Piece]] = {}

    async def look(self) -> bool:
        """Whether the fast tier found something. Raises ``Unscanned``."""
        budget = 0
        for number, (text, origin) in enumerate(self._texts):
            start = behind = end = 0
            while end < len(text):
                end = min(end + self._step, len(text)) if end else min(PIECE, len(text))
                # The first half of the overlap is what the piece before decides, the second what it decides it by.
                border = end - self._overlap if end < len(text) else end + 1
                piece = _Piece(number, start, behind, border, text[start:end])
                if budget < len(piece.words):
                    if self._rest:
                        await asyncio.sleep(self._rest)
                    await self.inspection.turn()
                    budget = PIECE
                budget -= len(piece.words)
                verdict = self.inspection.quick(piece.words, origin)
                start, behind = max(border - self._overlap, 0), border
                if verdict is None:
                    self._open.setdefault(origin, []).append(piece)
                    continue
                self._take(piece, verdict)
                begun = ongoing(verdict.findings, piece.start, end) if self._is_exact else None
                if begun is not None:
                    start = min(start, begun)
        return any(self._found)

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
        """Whether the fast tier left something to decide."""
        return bool(self._open)

    def give_up(self) -> None:
        self._open = {}

    @property
    def findings(self) -> list[tuple[Finding, ...]]:
        """For each text, what was found in it so far."""
        return [_without_overlaps(found) if found else () for found in self._found]

    async def _ask(self, origin: Origin, pieces: list[_Piece]) -> None:
        for share in _shares(pieces):
            await self.inspection.turn()  # much is computed before a model is asked
            verdicts = await self.inspection.thorough([piece.words for piece in share], origin)
            for piece, verdict in zip(share, verdicts, strict=True):
                self._take(piece, verdict)
            if any(self._found) and self.inspection.guard.config.action == "block":
                return  # one finding is enough, and what follows might not be judged at all

    def _take(self, piece: _Piece, verdict: Verdict) -> None:
        for finding in verdict.findings:
            start, end = piece.start + finding.start, piece.start + finding.end
            # Past its borders a piece lacks the surroundings; its neighbour has them. Not so where spans are
            # those of a model's own windows: they are taken as they come.
            if not self._is_exact or (end > piece.behind and start < piece.border):
                self._found[piece.text].append(Finding(finding.label, start, end, finding.score))


def _shares(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    share: list[_Piece] = []
    characters = 0
    for piece in pieces:
        characters += len(piece.words)
        if share and (characters > SHARE or len(share) == _MOST):
            yield share
            share, characters = [], len(piece.words)
        share.append(piece)
    if share:
        yield share


async def at_once(*work: Coroutine[Any, Any, None]) -> None:
    """Side by side; the first that fails ends the others, and its own error is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def ongoing(findings: Sequence[Finding], start: int, end: int) -> int | None:
    """Where something began that goes on at the end of what was scanned, ``[start, end)``: a private key, perhaps.

    The next scan is to begin there, so as to see that it is still the same.
    """
    if not findings or start + findings[-1].end < end or end - start - findings[-1].start > ONGOING:
        return None
    return start + findings[-1].start


def _without_overlaps(findings: list[Finding]) -> tuple[Finding, ...]:
    whole: list[Finding] = []
    for finding in sorted(findings, key=lambda one: (one.start, one.end)):
        if whole and finding.start < whole[-1].end:
            last = whole[-1]
            named = finding if finding.end - finding.start > last.end - last.start else last
            score = max(finding.score, last.score)
            whole[-1] = Finding(named.label, last.start, max(last.end, finding.end), score)
        else:
            whole.append(finding)
    return tuple(whole)
