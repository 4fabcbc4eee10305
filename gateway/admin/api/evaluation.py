"""``/admin/api/evaluation``: what the judge says of answers, over time, and of shadows beside the models they copy."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import Field

from gateway.admin.api.operation import operation
from gateway.admin.api.usage import MONTH, Moment
from gateway.admin.endpoint import Handle, Request, Strict, Told
from gateway.admin.site import Site
from gateway.databases.database import DatabaseError
from gateway.errors import Overloaded
from gateway.evaluation.asking import payer_of, series_of
from gateway.evaluation.table import EvaluationTable, PairFigures, ScoreFigures
from gateway.evaluation.table import Pair as Row
from gateway.intervals import wilson
from gateway.metering.price import NANO
from gateway.runtime.runtime import Runtime
from gateway.web.operation import Operation

HOURS = {"hour": 1, "day": 24}


class EvaluationQuery(Strict):
    since: Moment | None = None
    """30 days ago where it is not given."""
    until: Moment | None = None
    interval: Literal["hour", "day"] = "day"
    worst: Annotated[int, Field(ge=0, le=100)] = 10


class ScoreTold(Told):
    model: str
    start: float
    """Unix time: of the interval, or the hour of the first score of all."""
    count: int
    mean: float
    """From 0 to 1; between ``low`` and ``high`` with 95 % confidence."""
    low: float
    high: float


class ShadowTold(Told):
    """Means over the pairs that were compared, the shadow's beside the answer's."""

    model: str
    shadow: str
    count: int
    agreement: float
    """The share of pairs in which the judge prefers neither."""
    agreement_low: float
    agreement_high: float
    preferred: int
    """Pairs in which it prefers the shadow's answer in both orders; ``against``: the other one."""
    against: int
    score: float
    shadow_score: float
    dollars: float
    shadow_dollars: float
    seconds: float
    shadow_seconds: float


class PairTold(Told):
    request_id: str
    tenant: str
    created: float
    model: str
    target: str
    shadow: str
    shadow_target: str
    preferred: int
    score: float
    shadow_score: float
    dollars: float
    shadow_dollars: float
    seconds: float
    shadow_seconds: float
    question: str | None = None
    """Texts only where the policy keeps them, masked."""
    answer: str | None = None
    shadow_answer: str | None = None


class BudgetTold(Told):
    window: str
    dollars: float
    used: float


class EvaluationTold(Told):
    judge: str | None = None
    """None where the policy has no ``evaluation``: then there is nothing else."""
    rubric: str | None = None
    series: str | None = None
    """Of scores that can be compared: one judge's, by one rubric. All that is told is of this one."""
    budgets: list[BudgetTold] = Field(default=[])
    scores: list[ScoreTold] = Field(default=[])
    over_time: list[ScoreTold] = Field(default=[])
    shadows: list[ShadowTold] = Field(default=[])
    worst: list[PairTold] = Field(default=[])
    """Pairs whose shadow's answer is the furthest below the other one."""


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    async def show(request: Request) -> EvaluationTold:
        query = request.query(EvaluationQuery)
        runtime = request.context.runtime
        config = runtime.policy.evaluation
        if config is None:
            return EvaluationTold()
        since = time.time() - MONTH if query.since is None else query.since
        until = time.time() + 1.0 if query.until is None else query.until
        series = series_of(runtime.policy, config)
        try:
            found = await asyncio.to_thread(_read, runtime.evaluations, series, since, until, query)
        except DatabaseError as error:
            raise Overloaded(f"Scores cannot be read now. {error}", retry_after=1.0) from None
        scores, over_time, pairs, worst = found
        return EvaluationTold(
            judge=config.judge,
            rubric=config.asked_for,
            series=series,
            budgets=await _budgets(runtime),
            scores=[ScoreTold(**asdict(one)) for one in scores],
            over_time=[ScoreTold(**asdict(one)) for one in over_time],
            shadows=[_shadow(one) for one in pairs],
            worst=[_pair(one) for one in worst],
        )

    about = "What the judge says of answers, by model and over time, and of shadows"
    return [
        (
            operation(
                *("GET", "/evaluation", "showEvaluation", about, EvaluationTold),
                query=EvaluationQuery,
                errors=(503,),
            ),
            show,
        )
    ]


def _read(
    table: EvaluationTable, series: str, since: float, until: float, query: EvaluationQuery
) -> tuple[list[ScoreFigures], list[ScoreFigures], list[PairFigures], list[Row]]:
    return (
        table.scores(series, since, until, None),
        table.scores(series, since, until, HOURS[query.interval]),
        table.pairs(series, since, until),
        table.worst(series, since, until, query.worst),
    )


async def _budgets(runtime: Runtime) -> list[BudgetTold]:
    config = runtime.policy.evaluation
    if config is None:
        return []
    used = await runtime.quotas.used(runtime.policy, payer_of(config))
    return [
        BudgetTold(window=limit.window, dollars=limit.maximum / NANO, used=amount / NANO)
        for limit, amount, _ in used
        if limit.quantity == "dollars"
    ]


def _shadow(one: PairFigures) -> ShadowTold:
    agreement = (one.count - one.preferred - one.against) / one.count
    low, high = wilson(agreement, one.count)
    return ShadowTold(**asdict(one), agreement=agreement, agreement_low=low, agreement_high=high)


def _pair(one: Row) -> PairTold:
    row = asdict(one)
    del row["series"]
    dollars, shadow_dollars = row.pop("nanodollars") / NANO, row.pop("shadow_nanodollars") / NANO
    return PairTold(**row, dollars=dollars, shadow_dollars=shadow_dollars)
