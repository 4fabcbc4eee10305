"""What an experiment has shown so far: each arm's figures, and its differences from the control.

A finding is a difference whose interval is without 0. All of an experiment's differences share ``FALSE_FINDINGS``: in
so many experiments without any difference at most there is ever a finding, however often one looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gateway.experiments.confidence import LEAST, Interval, Sums, of_difference, of_mean
from gateway.experiments.experiments import run_of
from gateway.experiments.metrics import METRICS
from gateway.experiments.sample_ratio import chi_squared, is_mismatch
from gateway.policy.schema import Metric, Policy

FALSE_FINDINGS = 0.05
Verdict = Literal["better", "worse", "different", "no difference", "too early"]
"""``no difference`` has been found so far; it may be yet."""
Found = Mapping[str, Any]
"""An arm's sums: ``gateway.observe.ledger.experiment_sums``."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Of one arm and metric."""

    metric: Metric
    users: int
    requests: int
    """That the metric is known of."""
    mean: float | None
    interval: Interval | None
    """The mean's, with 95 %; None where it is too early."""
    difference: float | None = None
    """From the control's mean; None for the control."""
    difference_interval: Interval | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class ArmResults:
    name: str
    share: float
    """Of users that it should have, by the weights."""
    users: int
    requests: int
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Results:
    experiment: str
    run: str
    arms: tuple[ArmResults, ...]
    """The control first."""
    confidence: float
    """Of each difference's interval, so that all of them together have 95 %."""
    mismatch: bool
    """The arms have other shares of users than the weights give them."""
    chi_squared: float

    @property
    def is_early(self) -> bool:
        return any(arm.users < LEAST for arm in self.arms)


def results_of(policy: Policy, name: str, found: Mapping[str, Found]) -> Results:
    """Of the experiment ``name`` of ``policy``, by the sums of its arms."""
    one = policy.experiments[name]
    alpha = FALSE_FINDINGS / (len(one.metrics) * (len(one.arms) - 1))
    control, whole = next(iter(one.arms)), sum(one.weights.values())
    users = {arm: int(found.get(arm, {}).get("units", 0)) for arm in one.arms}
    return Results(
        experiment=name,
        run=run_of(policy, name),
        arms=tuple(
            ArmResults(
                name=arm,
                share=weight / whole,
                users=users[arm],
                requests=int(found.get(arm, {}).get("requests", 0)),
                figures=_figures(
                    one.metrics, found.get(arm, {}), None if arm == control else found.get(control, {}), alpha
                ),
            )
            for arm, weight in one.weights.items()
        ),
        confidence=1 - alpha,
        mismatch=is_mismatch(users, one.weights),
        chi_squared=chi_squared(users, one.weights),
    )


def _figures(
    metrics: Sequence[Metric], found: Found, control: Found | None, alpha: float
) -> tuple[Figure, ...]:
    return tuple(_figure(metric, found, control, alpha) for metric in metrics)


def _figure(metric: Metric, found: Found, control: Found | None, alpha: float) -> Figure:
    sums, of_share = _sums(found, metric), METRICS[metric].of_share
    figure = Figure(
        metric, sums.units, int(sums.count), sums.mean, of_mean(sums, FALSE_FINDINGS, of_share=of_share)
    )
    if control is None:
        return figure
    other = _sums(control, metric)
    between = of_difference(sums, other, alpha, of_share=of_share)
    difference = None if sums.mean is None or other.mean is None else sums.mean - other.mean
    return Figure(
        *(figure.metric, figure.users, figure.requests, figure.mean, figure.interval),
        difference,
        between,
        _verdict(metric, between),
    )


def _verdict(metric: Metric, between: Interval | None) -> Verdict:
    if between is None:
        return "too early"
    if between.low <= 0 <= between.high:
        return "no difference"
    better = METRICS[metric].better
    if better == "neither":
        return "different"
    return "better" if (between.low > 0) == (better == "higher") else "worse"


def _sums(found: Found, metric: Metric) -> Sums:
    if not found:
        return Sums()
    names = ("count", "total", "count_squares", "total_squares", "products")
    return Sums(int(found[f"{metric}_units"]), *(float(found[f"{metric}_{name}"]) for name in names))
