"""An evaluation in figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from gateway.intervals import wilson
from gateway.lab.bench.percentiles import percentile
from gateway.lab.evaluate.evaluation import Evaluation, Result
from gateway.lab.evaluate.statistics import Pairs, bootstrap, difference_bound, mcnemar

POWER = 0.8


@dataclass(frozen=True, slots=True)
class Bounds:
    """``budget``: the drop in the share of passes that is allowed. ``confidence`` of every statement, as 0.95."""

    budget: float = 0.0
    confidence: float = 0.95


def summarised(evaluation: Evaluation, bounds: Bounds) -> dict[str, Any]:
    """As ``--json`` prints it. A candidate worse than the budget allows, beyond chance, is a ``regression``."""
    models = evaluation.plan.models
    results = evaluation.results
    # Several candidates are several chances of a false alarm (Bonferroni).
    each = 1 - (1 - bounds.confidence) / max(1, len(models) - 1)
    return {
        "cases": len(evaluation.plan.cases),
        "baseline": models[0],
        "budget": bounds.budget,
        "confidence": bounds.confidence,
        "judge": evaluation.plan.judge,
        "judge_cost_usd": evaluation.judge_cost,
        "models": [_model(model, results[model], bounds.confidence) for model in models],
        "comparisons": [
            _comparison(
                model, results[models[0]], results[model], evaluation.preferred.get(model), bounds, each
            )
            for model in models[1:]
        ],
    }


def _model(model: str, results: Sequence[Result], confidence: float) -> dict[str, Any]:
    judged = [result.verdict for result in results if result.verdict is not None]
    passed = sum(verdict.passed for verdict in judged)
    answers = [result.answer for result in results]
    costs = [answer.cost for answer in answers if answer.cost is not None]
    answered = [answer for answer in answers if not answer.error]
    return {
        "model": model,
        "judged": len(judged),
        "passed": passed,
        "pass_rate": passed / len(judged) if judged else None,
        "pass_rate_interval": wilson(passed / max(1, len(judged)), len(judged), confidence),
        "score": sum(verdict.score for verdict in judged) / len(judged) if judged else None,
        "errors": len(answers) - len(answered),
        "unjudged": len(results) - len(judged),
        "cost_usd": sum(costs) if len(costs) == len(answers) else None,
        "seconds": _percentiles([one.seconds for one in answered]),
        "first_token_seconds": _percentiles([one.first_token for one in answered]),
        "completion_tokens": sum(one.completion_tokens for one in answered) / max(1, len(answered)),
        "tasks": dict(_tasks(results)),
    }


def _percentiles(values: Sequence[float | None]) -> dict[str, float] | None:
    known = sorted(value for value in values if value is not None)
    return {f"p{percent}": percentile(known, percent) for percent in (50, 95)} if known else None


def _tasks(results: Sequence[Result]) -> Iterator[tuple[str, dict[str, int]]]:
    for task in dict.fromkeys(result.case.task for result in results):
        verdicts = [one.verdict for one in results if one.case.task == task and one.verdict is not None]
        yield task, {"judged": len(verdicts), "passed": sum(verdict.passed for verdict in verdicts)}


def _comparison(
    model: str,
    baseline: Sequence[Result],
    candidate: Sequence[Result],
    preferred: Mapping[str, int] | None,
    bounds: Bounds,
    each: float,
) -> dict[str, Any]:
    both = [
        (old.verdict, new.verdict)
        for old, new in zip(baseline, candidate, strict=True)
        if old.verdict is not None and new.verdict is not None
    ]
    pairs = Pairs(
        both=sum(old.passed and new.passed for old, new in both),
        gained=sum(new.passed and not old.passed for old, new in both),
        lost=sum(old.passed and not new.passed for old, new in both),
        neither=sum(not old.passed and not new.passed for old, new in both),
    )
    bound = difference_bound(pairs, each)
    return {
        "model": model,
        "pairs": pairs.count,
        "gained": pairs.gained,
        "lost": pairs.lost,
        "difference": pairs.difference,
        "difference_interval": bootstrap(
            [float(new.passed) - float(old.passed) for old, new in both], bounds.confidence
        ),
        "at_most": bound,
        "detectable": detectable(pairs, each),
        "p": mcnemar(pairs),
        "score_difference": _mean([new.score - old.score for old, new in both]),
        "score_difference_interval": bootstrap(
            [new.score - old.score for old, new in both], bounds.confidence
        ),
        "preferred": _preferred(preferred) if preferred is not None else None,
        "regression": bool(both) and bound < -bounds.budget,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _preferred(preferred: Mapping[str, int]) -> dict[str, Any]:
    wins, losses = (sum(value == wanted for value in preferred.values()) for wanted in (1, -1))
    split = Pairs(both=0, gained=wins, lost=losses, neither=len(preferred) - wins - losses)
    return {"wins": wins, "ties": split.neither, "losses": losses, "p": mcnemar(split)}


def detectable(pairs: Pairs, confidence: float) -> float | None:
    """The drop that so many cases, of which so many tell the models apart, find in four of five evaluations."""
    if pairs.count == 0:
        return None
    size = pairs.count + 2
    told = (pairs.gained + pairs.lost + 2) / size
    normal = NormalDist()
    return (normal.inv_cdf(confidence) + normal.inv_cdf(POWER)) * math.sqrt(told / size)
