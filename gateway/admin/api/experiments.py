"""``/admin/api/experiments``: what the policy's experiments have shown so far."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from gateway.admin.api.operation import operation
from gateway.admin.api.usage import Moment
from gateway.admin.endpoint import Handle, Request, Strict, Told
from gateway.databases.database import Database, DatabaseError
from gateway.errors import Overloaded
from gateway.experiments.experiments import run_of
from gateway.experiments.metrics import METRICS
from gateway.experiments.results import ArmResults, Figure, results_of
from gateway.observe.ledger.experiment_sums import sums_of
from gateway.policy.schema import Policy
from gateway.web.operation import Operation

KEPT = 90 * 86_400.0
"""Seconds of which results are told where no ``since`` is given."""


class ExperimentsQuery(Strict):
    since: Moment | None = None
    """90 days ago where it is not given."""


class MetricFigure(Told):
    metric: str
    unit: str
    users: int
    requests: int
    """That the metric is known of."""
    mean: float | None = None
    low: float | None = None
    """The mean's interval of 95 %, which holds however often one looks; left out where it is too early."""
    high: float | None = None
    difference: float | None = None
    """From the control."""
    difference_low: float | None = None
    difference_high: float | None = None
    verdict: str | None = None
    """``better``, ``worse``, ``different``, ``no difference`` (so far), ``too early``; left out for the control."""


class ArmSeen(Told):
    name: str
    share: float
    """Of users that it should have."""
    users: int
    requests: int
    model: str | None = None
    prompt: str | None = None
    guards: list[str]
    without: list[str]
    figures: list[MetricFigure]


class ExperimentSeen(Told):
    name: str
    run: str
    """With a digest of what is compared: another content, another run."""
    key: str
    share: float
    models: list[str]
    """That are asked for; none are all."""
    confidence: float
    """Of each difference's interval: all together have 95 %."""
    mismatch: bool
    """The arms have other shares of users than they should: something loses some."""
    chi_squared: float
    arms: list[ArmSeen]
    """The control first."""


class ExperimentList(Told):
    experiments: list[ExperimentSeen]


def operations() -> list[tuple[Operation, Handle]]:
    async def show(request: Request) -> ExperimentList:
        query = request.query(ExperimentsQuery)
        runtime = request.context.runtime
        since = time.time() - KEPT if query.since is None else query.since
        database = runtime.ledger.database if runtime.ledger is not None else None
        try:
            seen = await asyncio.to_thread(lambda: [*_seen(runtime.policy, database, since)])
        except DatabaseError as error:
            raise Overloaded(f"The ledger cannot be read now. {error}", retry_after=1.0) from None
        return ExperimentList(experiments=seen)

    about = "What experiments have shown so far: each arm's means and differences, with intervals"
    return [
        (
            operation(
                *("GET", "/experiments", "listExperiments", about, ExperimentList),
                query=ExperimentsQuery,
                errors=(503,),
            ),
            show,
        )
    ]


def _seen(policy: Policy, database: Database | None, since: float) -> Iterator[ExperimentSeen]:
    """``database``: without it nothing was seen."""
    for name, one in policy.experiments.items():
        run = run_of(policy, name)
        found = sums_of(database, run, one.metrics, since) if database is not None else {}
        results = results_of(policy, name, found)
        yield ExperimentSeen(
            name=name,
            run=run,
            key=one.key,
            share=one.share,
            models=[*one.where.models],
            confidence=results.confidence,
            mismatch=results.mismatch,
            chi_squared=results.chi_squared,
            arms=[_arm(policy, name, arm) for arm in results.arms],
        )


def _arm(policy: Policy, name: str, results: ArmResults) -> ArmSeen:
    arm = policy.experiments[name].arms[results.name]
    return ArmSeen(
        name=results.name,
        share=results.share,
        users=results.users,
        requests=results.requests,
        model=arm.model,
        prompt=arm.prompt,
        guards=[*arm.guards],
        without=[*arm.without],
        figures=[_figure(one) for one in results.figures],
    )


def _figure(one: Figure) -> MetricFigure:
    low, high = one.interval or (None, None)
    difference_low, difference_high = one.difference_interval or (None, None)
    return MetricFigure(
        metric=one.metric,
        unit=METRICS[one.metric].unit,
        users=one.users,
        requests=one.requests,
        mean=one.mean,
        low=low,
        high=high,
        difference=one.difference,
        difference_low=difference_low,
        difference_high=difference_high,
        verdict=one.verdict,
    )
