"""Who answers: what each way to decide between two models costs, and how many answers are right with it.

Every way is a list of settings, from never to always asking the small model alone, each a choice for every prompt. The
setting is chosen on one half of the prompts, as the best within a budget, and judged on the other; then the halves
change places. Weights, where there are any, are fitted on the half that chooses, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from benchmarks.real_models.answers import Answer
from benchmarks.real_models.prompts import Prompt
from gateway.cascade.complexity import ComplexityClassifier
from gateway.cascade.features import clipped, shape, words
from gateway.cascade.scorers import RequestScorer
from gateway.types import ChatRequest
from training.complexity import Rows, fit

Array = np.ndarray
DRAWS = 2_000
KNOTS = 40
"""Settings of a threshold that are tried."""


@dataclass(frozen=True)
class Outcomes:
    """Of both models, by prompt."""

    prompts: Sequence[Prompt]
    small: Array
    """Whether its answer is right."""
    large: Array
    small_cost: Array
    """Of its answer: tokens, the prompt's with it, times parameters."""
    large_cost: Array
    confidence: Array
    """The mean log-probability of the small model's answer."""

    @classmethod
    def of(
        cls,
        prompts: Sequence[Prompt],
        answers: tuple[Sequence[Answer], Sequence[Answer]],
        right: tuple[Sequence[bool], Sequence[bool]],
        parameters: tuple[float, float],
    ) -> Outcomes:
        costs = [
            np.array([size * (one.prompt_tokens + one.tokens) for one in each])
            for size, each in zip(parameters, answers, strict=True)
        ]
        confidence = np.array([one.mean_logprob for one in answers[0]])
        return cls(prompts, np.array(right[0]), np.array(right[1]), costs[0], costs[1], confidence)

    @property
    def halves(self) -> Array:
        """0 or 1, by the text."""
        return np.array([crc32(one.prompt.encode()) % 2 for one in self.prompts])


@dataclass(frozen=True)
class Setting:
    """One choice for every prompt."""

    tried: Array
    """Where the small model is asked first."""
    kept: Array
    """Where its answer is passed on; the large model is asked for all others."""

    def right(self, outcomes: Outcomes) -> Array:
        return np.where(self.kept, outcomes.small, outcomes.large)

    def cost(self, outcomes: Outcomes) -> Array:
        return self.tried * outcomes.small_cost + ~self.kept * outcomes.large_cost


Strategy = Callable[[Outcomes, Array], list[Setting]]
"""All settings, from the outcomes and a mask of those prompts whose outcomes it may use to fit anything."""


def score_shipped(outcomes: Outcomes) -> Array:
    """As the gateway scores requests, without a sidecar."""
    scorer = RequestScorer(ComplexityClassifier.load())

    async def scores() -> list[float]:
        requests = [ChatRequest(model="", messages=tuple(one.messages)) for one in outcomes.prompts]
        return [await scorer.complexity(request) for request in requests]

    return np.array(asyncio.run(scores()))


def score_fitted(outcomes: Outcomes, known: Array) -> Array:
    """The same classifier as the shipped one, trained on the prompts of ``known`` and nothing else."""
    texts = [clipped(one.prompt) for one in outcomes.prompts]
    rows = Rows(
        texts,
        [one.kind for one in outcomes.prompts],
        outcomes.small,
        outcomes.large,
        [words(text) for text in texts],
        np.array([shape(text) for text in texts]),
    )
    classifier = ComplexityClassifier(fit(rows, known))
    return np.array([classifier.of_question(text) for text in texts])


def score_by_kind(outcomes: Outcomes, known: Array) -> Array:
    """What knowing the kind of task tells, and nothing of the prompt: the loss by the small model's answers."""
    lost = outcomes.large.astype(float) - outcomes.small
    kinds = np.array([one.kind for one in outcomes.prompts])
    means = {kind: lost[known & (kinds == kind)] for kind in set(kinds)}
    return np.array([means[kind].mean() if len(means[kind]) else lost[known].mean() for kind in kinds])


def thresholds(values: Array) -> Array:
    """Between the values, from none to all of them."""
    return np.concatenate([[-np.inf], np.unique(np.quantile(values, np.linspace(0, 1, KNOTS))), [np.inf]])


def routed(score: Array) -> list[Setting]:
    """One model is asked: the small one where the score is lower."""
    return [Setting(score < bar, score < bar) for bar in thresholds(score)]


def by_shipped_score(outcomes: Outcomes, known: Array) -> list[Setting]:
    return routed(score_shipped(outcomes))


def by_fitted_score(outcomes: Outcomes, known: Array) -> list[Setting]:
    return routed(score_fitted(outcomes, known))


def by_kind(outcomes: Outcomes, known: Array) -> list[Setting]:
    return routed(score_by_kind(outcomes, known))


def by_confidence(outcomes: Outcomes, known: Array) -> list[Setting]:
    """The small model is always asked, as by ``mean_logprob_below``."""
    return both(np.zeros(len(known)), outcomes)


def by_fitted_score_and_confidence(outcomes: Outcomes, known: Array) -> list[Setting]:
    """A policy with ``when.complexity.below`` and ``escalate.mean_logprob_below``."""
    return both(score_fitted(outcomes, known), outcomes)


def both(score: Array, outcomes: Outcomes) -> list[Setting]:
    settings = []
    for below in thresholds(score)[1:]:
        tried = score < below
        settings += [
            Setting(tried, tried & (outcomes.confidence >= bar)) for bar in thresholds(outcomes.confidence)
        ]
    return settings


STRATEGIES: dict[str, Strategy] = {
    "complexity, as shipped": by_shipped_score,
    "complexity, fitted": by_fitted_score,
    "confidence": by_confidence,
    "both, fitted": by_fitted_score_and_confidence,
    "kind of task known": by_kind,
}


@dataclass(frozen=True)
class Point:
    """A strategy within a budget, over all prompts: each judged by what the other half has chosen."""

    right: Array
    cost: Array
    """By prompt; the large model alone costs 1 on average."""

    @property
    def quality(self) -> float:
        return float(self.right.mean())

    @property
    def spent(self) -> float:
        return float(self.cost.mean())


def best(budget: float, settings: Sequence[Setting], outcomes: Outcomes, known: Array) -> Setting:
    """Of those that cost at most ``budget`` of what the large model does, for the prompts of ``known``."""
    limit = budget * outcomes.large_cost[known].mean()
    affordable = [one for one in settings if one.cost(outcomes)[known].mean() <= limit]
    return max(affordable, key=lambda one: float(one.right(outcomes)[known].mean()), default=settings[-1])


def within(budget: float, strategy: Strategy, outcomes: Outcomes) -> Point:
    """``budget`` as a share of what the large model alone costs."""
    halves = outcomes.halves
    right, cost = np.zeros(len(halves)), np.zeros(len(halves))
    for half in (0, 1):
        known, judged = halves != half, halves == half
        chosen = best(budget, strategy(outcomes, known), outcomes, known)
        right[judged] = chosen.right(outcomes)[judged]
        cost[judged] = chosen.cost(outcomes)[judged]
    return Point(right, cost / outcomes.large_cost.mean())


def bar_within(budget: float, outcomes: Outcomes, known: Array) -> float:
    """The ``mean_logprob_below`` with the best quality within the budget, of the prompts of ``known``."""
    settings = [setting for setting in by_confidence(outcomes, known) if setting.tried.all()]
    kept = outcomes.confidence[best(budget, settings, outcomes, known).kept]
    return round(float(kept.min(initial=0.0)), 4)


def gain(point: Point, outcomes: Outcomes, rows: Array | None = None) -> float:
    """How much more is right than by drawing lots for the same money; of the prompts ``rows`` only, if given."""
    rows = np.arange(len(outcomes.small)) if rows is None else rows
    unit = outcomes.large_cost.mean()
    cheap, dear = (each[rows].mean() / unit for each in (outcomes.small_cost, outcomes.large_cost))
    share = np.clip((point.cost[rows].mean() - cheap) / (dear - cheap), 0, 1)
    lots = (1 - share) * outcomes.small[rows].mean() + share * outcomes.large[rows].mean()
    return float(point.right[rows].mean() - lots)


def interval(point: Point, outcomes: Outcomes) -> tuple[float, float]:
    """The middle 95 % of the gains of resampled prompts; the settings that were chosen stay."""
    count = len(outcomes.small)
    drawn = np.random.default_rng(0).integers(0, count, (DRAWS, count))
    low, high = np.quantile([gain(point, outcomes, rows) for rows in drawn], (0.025, 0.975))
    return float(low), float(high)
