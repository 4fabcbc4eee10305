"""A worker's queue of answers to be judged. Nobody waits for it, and what finds it full is not judged.

What waits is in memory: a process that is killed loses that, and no more. Scores are written one by one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from gateway.databases.database import DatabaseError
from gateway.evaluation import judge as words
from gateway.evaluation.asking import Busy, Judge, Unjudged
from gateway.evaluation.table import EvaluationTable, Pair, Scored
from gateway.evaluation.texts import texts_of
from gateway.evaluation.work import Asked, Side, Work
from gateway.observe.ledger.ledger import Ledger
from gateway.observe.ledger.score import write_score
from gateway.observe.metrics import Metrics
from gateway.observe.telemetry.telemetry import Telemetry
from gateway.types import Arm

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Answers that are judged side by side."""
MOST_BYTES = 32 * 2**20
"""Of all that waits, approximately."""
LONGEST_WAIT = 600.0
"""Seconds for which an answer waits for idle capacity."""
AGAIN = 1.0
"""Seconds after which idle capacity is looked for again where there was none."""
SCORE = "judge"
"""What its scores are called where traces are."""
_ROW = 5.0
"""Seconds for which the ledger's row is waited for."""

Told = Callable[[Arm, float, float], object]
"""Takes an arm, when its request came (Unix time), and its score."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Who judges now, and where scores go."""

    judge: Judge
    table: EvaluationTable
    ledger: Ledger | None
    in_use: Callable[[], AbstractContextManager[object]]
    """What the judge needs stays open within it."""
    telemetry: Telemetry | None = None


class Evaluator:
    """One per worker; it outlives policies. Nothing runs while the policy has no ``evaluation``."""

    def __init__(
        self,
        metrics: Metrics,
        told: Told | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._told = told
        self._clock = clock
        self._bench: Bench | None = None
        self._waiting: deque[Work] = deque()
        self._bytes = 0
        self._came = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def update(self, bench: Bench | None) -> None:
        """What waits is judged by the judge that is in force then; where there is none, not at all."""
        self._bench = bench
        if bench is None:
            self._waiting.clear()
            self._bytes = 0
            self._gauge()
        if bench is not None and not self._tasks:
            self._tasks = [asyncio.create_task(self._run(), name="evaluation") for _ in range(AT_ONCE)]

    def add(self, work: Work) -> None:
        """Never waits, never raises."""
        bench, size = self._bench, work.size
        if bench is None:
            return
        if len(self._waiting) >= bench.judge.config.queue or self._bytes + size > MOST_BYTES:
            self._count(work, "dropped")
            return
        self._waiting.append(work)
        self._bytes += size
        self._gauge()
        self._came.set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def aclose(self) -> None:
        """What waits is not judged."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                self._came.clear()
                await self._came.wait()
            work = self._waiting.popleft()
            self._bytes -= work.size
            self._gauge()
            bench = self._bench
            if bench is None:
                continue
            try:
                with bench.in_use():
                    await self._judge(bench, work)
            except Unjudged as error:
                self._count(work, error.outcome)
            except Exception:
                self._count(work, "failed")
                log.exception("%s could not be judged", work.asked.request_id)

    async def _judge(self, bench: Bench, work: Work) -> None:
        judge, asked, answered, shadow = bench.judge, work.asked, work.answered, work.shadow
        texts = await self._texts(judge, work, answered)
        score = await self._score(judge, work, texts)
        pair = None
        if shadow is not None:
            pair = await self._pair(judge, work, shadow, texts, score)
        scored = Scored(
            asked.principal.tenant,
            asked.request_id,
            asked.created,
            judge.series,
            answered.model,
            answered.target,
            score,
        )
        self._count(work, "scored")
        self._metrics.evaluation_score[(answered.model,)].observe(score)
        if pair is not None and shadow is not None:
            outcome = {1: "shadow", -1: "answer"}.get(pair.preferred, "neither")
            self._metrics.evaluation_pairs.labels(answered.model, shadow.model, outcome).inc()
        if self._told is not None and asked.arm is not None:
            self._told(asked.arm, asked.created, score)
        if bench.telemetry is not None and asked.trace_id is not None:
            bench.telemetry.scored(asked.request_id, SCORE, score, source="model", trace_id=asked.trace_id)
        try:
            await asyncio.to_thread(_write, bench, scored, pair)
        except DatabaseError as error:
            log.warning("a score is lost: %s", error)

    async def _pair(
        self, judge: Judge, work: Work, shadow: Side, texts: tuple[str, str], score: float
    ) -> Pair:
        asked, answered, rubric = work.asked, work.answered, judge.config.asked_for
        question, answer = texts
        _, other = await self._texts(judge, work, shadow)
        preferred: int | None = 0
        other_score = score
        if other != answer:
            other_score = await self._score(judge, work, (question, other))
            said = [
                words.better(await self._ask(judge, work, words.comparing(question, one, two, rubric)))
                for one, two in ((answer, other), (other, answer))
            ]
            preferred = words.preferred(*said)
        if preferred is None:
            raise Unjudged("unreadable")
        kept = (
            await self._kept(asked, answered, shadow)
            if judge.config.texts == "masked"
            else (None, None, None)
        )
        return Pair(
            asked.principal.tenant,
            asked.request_id,
            asked.created,
            judge.series,
            answered.model,
            answered.target,
            shadow.model,
            shadow.target,
            preferred,
            score,
            other_score,
            answered.nanodollars,
            shadow.nanodollars,
            answered.seconds,
            shadow.seconds,
            *kept,
        )

    async def _kept(self, asked: Asked, answered: Side, shadow: Side) -> tuple[str | None, ...]:
        """What is kept to be read is masked, whoever judged."""
        one = await texts_of(asked, answered.answer, masked=True)
        other = await texts_of(asked, shadow.answer, masked=True)
        return (*one, other[1]) if one is not None and other is not None else (None, None, None)

    async def _texts(self, judge: Judge, work: Work, side: Side) -> tuple[str, str]:
        texts = await texts_of(work.asked, side.answer, masked=not judge.is_house)
        if texts is None:
            raise Unjudged("no_text")
        return texts

    async def _score(self, judge: Judge, work: Work, texts: tuple[str, str]) -> float:
        said = await self._ask(judge, work, words.scoring(*texts, judge.config.asked_for))
        points = words.points(said)
        if points is None:
            raise Unjudged("unreadable")
        return points.score

    async def _ask(self, judge: Judge, work: Work, messages: words.Messages) -> str:
        while True:
            try:
                return await judge.ask(work.asked, messages)
            except Busy:
                if self._clock() - work.since > LONGEST_WAIT:
                    raise Unjudged("waited") from None
            await asyncio.sleep(AGAIN)

    def _count(self, work: Work, outcome: str) -> None:
        self._metrics.evaluations.labels(work.answered.model, outcome).inc()

    def _gauge(self) -> None:
        self._metrics.evaluations_waiting.set(self.waiting)


def _write(bench: Bench, scored: Scored, pair: Pair | None) -> None:
    bench.table.write(scored, pair)
    if (ledger := bench.ledger) is None:
        return
    row = (ledger.database, scored.tenant, scored.request_id, scored.score)
    if not write_score(*row, replaces=False):
        ledger.wait_drained(_ROW)  # this worker may be about to write it
        write_score(*row, replaces=False)
