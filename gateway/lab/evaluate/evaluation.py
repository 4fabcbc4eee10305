"""An evaluation from its set to its results: answers, then who judges them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import orjson

from gateway.lab.evaluate import judge
from gateway.lab.evaluate.answer import Answer, read_answer
from gateway.lab.evaluate.case import Case, Rubric, Similar
from gateway.lab.evaluate.checks import Verdict, failed
from gateway.lab.evaluate.gateway_batches import GatewayBatches, Line

Told = Callable[[str, int, int], None]
"""What is done, how much of it has ended, of how much."""


@dataclass(frozen=True)
class Plan:
    """What is evaluated. The first model is the baseline, which the others are compared with."""

    cases: Sequence[Case]
    models: Sequence[str]
    judge: str | None = None
    pairwise: bool = False
    judge_params: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0})
    embedder: str | None = None
    run: str = ""
    """Another name, another run: nothing of others is taken over."""

    def name(self, source: bytes) -> str:
        """What its batches are found by: the same set, models and judge have the same."""
        told = [self.models, self.judge, self.pairwise, self.judge_params, self.run]
        return sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS) + source).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Result:
    """One model's answer to one case. ``verdict`` is None where a judge could not be read: nobody knows."""

    case: Case
    answer: Answer
    verdict: Verdict | None


@dataclass(frozen=True)
class Evaluation:
    """``results`` by model, in the order of the cases.

    ``preferred`` by model and case, where a judge compared: 1 for the candidate, -1 for the baseline, 0 for neither.
    """

    plan: Plan
    results: Mapping[str, Sequence[Result]]
    preferred: Mapping[str, Mapping[str, int]]
    judge_cost: float | None


async def evaluate(plan: Plan, name: str, gateway: GatewayBatches, told: Told) -> Evaluation:
    """``name`` is the run's (``Plan.name``). Raises ``EvaluationError``."""
    asked: list[Line] = [
        (f"{number}/{place}", {**case.body, "model": model})
        for place, case in enumerate(plan.cases)
        for number, model in enumerate(plan.models)
    ]
    lines = await gateway.answers(name, asked, lambda done, of: told("answers", done, of))
    receipts = await gateway.receipts(
        [(line.get("response") or {}).get("request_id") or "" for line in lines.values()],
        lambda done, of: told("receipts", done, of),
    )
    answers = {
        model: [
            _measured(read_answer(lines[f"{number}/{place}"]), receipts) for place in range(len(plan.cases))
        ]
        for number, model in enumerate(plan.models)
    }
    said, cost = await _judged(plan, name, gateway, answers, told)
    cosines = await _cosines(plan, gateway, answers)
    results = {
        model: [
            Result(case, answer, _verdict(case, answer, said, cosines, (number, place)))
            for place, (case, answer) in enumerate(zip(plan.cases, answers[model], strict=True))
        ]
        for number, model in enumerate(plan.models)
    }
    preferred = {
        model: dict(_preferences(plan, number, said)) for number, model in enumerate(plan.models) if number
    }
    return Evaluation(plan, results, preferred if plan.pairwise else {}, cost)


def _measured(answer: Answer, receipts: Mapping[str, Mapping[str, Any]]) -> Answer:
    """With the times and the cost that its receipt tells."""
    stages = receipts.get(answer.request_id, {}).get("stages", {})
    traced = stages.get("trace", {})
    return replace(
        answer,
        cost=stages.get("quota", {}).get("cost_usd"),
        first_token=stages.get("meter", {}).get("first_token"),
        seconds=traced.get("seconds"),
        trace_id=traced.get("trace_id") or "" if traced.get("sampled") else "",
    )


async def _judged(
    plan: Plan, name: str, gateway: GatewayBatches, answers: Mapping[str, Sequence[Answer]], told: Told
) -> tuple[dict[str, Answer], float | None]:
    """What the judge said, by the question's id, and what that cost."""
    if plan.judge is None:
        return {}, None
    body = {**plan.judge_params, "model": plan.judge}
    questions: list[Line] = [
        (custom_id, {**body, "messages": messages}) for custom_id, messages in _questions(plan, answers)
    ]
    if not questions:
        return {}, None
    lines = await gateway.answers(f"{name}.judge", questions, lambda done, of: told("judge", done, of))
    said = {custom_id: read_answer(line) for custom_id, line in lines.items()}
    ids = [answer.request_id for answer in said.values() if answer.request_id]
    receipts = await gateway.receipts(ids, lambda done, of: told("receipts", done, of))
    costs = [_measured(answer, receipts).cost for answer in said.values()]
    known = [cost for cost in costs if cost is not None]
    return said, sum(known) if len(known) == len(costs) else None


def _questions(
    plan: Plan, answers: Mapping[str, Sequence[Answer]]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    base = answers[plan.models[0]]
    for place, case in enumerate(plan.cases):
        for check, rubric in enumerate(case.checks):
            if not isinstance(rubric, Rubric):
                continue
            for number, model in enumerate(plan.models):
                answer = answers[model][place]
                if not answer.error:
                    yield f"{number}/{place}/{check}", judge.scoring(case, rubric, answer)
                if number and plan.pairwise and not (answer.error or base[place].error):
                    yield f"{number}/{place}/{check}/ab", judge.comparing(case, rubric, base[place], answer)
                    yield f"{number}/{place}/{check}/ba", judge.comparing(case, rubric, answer, base[place])


def _preferences(plan: Plan, number: int, said: Mapping[str, Answer]) -> Iterator[tuple[str, int]]:
    """Of the candidate ``number``: 1 where both orders prefer it, -1 where both prefer the baseline, else 0."""
    for place, case in enumerate(plan.cases):
        for check in range(len(case.checks)):
            asked = [f"{number}/{place}/{check}/{order}" for order in ("ab", "ba")]
            words = [judge.better(said[one]) for one in asked if one in said]
            if len(words) == 2 and (preferred := judge.preferred(*words)) is not None:
                yield case.id, preferred


async def _cosines(
    plan: Plan, gateway: GatewayBatches, answers: Mapping[str, Sequence[Answer]]
) -> dict[tuple[str, str], float]:
    """Of each answer's text and the text that it should resemble."""
    pairs = {
        (answers[model][place].text, check.text)
        for place, case in enumerate(plan.cases)
        for check in case.checks
        if isinstance(check, Similar)
        for model in plan.models
    }
    texts = sorted({text for pair in pairs for text in pair if text.strip()})
    if plan.embedder is None or not texts:
        return {}
    vectors = dict(zip(texts, await gateway.embeddings(plan.embedder, texts), strict=True))
    return {
        (one, other): _cosine(vectors[one], vectors[other])
        for one, other in pairs
        if one in vectors and other in vectors
    }


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    norms = math.hypot(*one) * math.hypot(*other)
    return sum(map(operator.mul, one, other)) / norms if norms else 0.0


def _verdict(
    case: Case,
    answer: Answer,
    said: Mapping[str, Answer],
    cosines: Mapping[tuple[str, str], float],
    at: tuple[int, int],
) -> Verdict | None:
    """Passed where all checks are; the score is their mean."""
    if answer.error:
        return failed(answer.error)
    number, place = at
    verdicts: list[Verdict] = []
    for index, check in enumerate(case.checks):
        if isinstance(check, Rubric):
            points = judge.points(said[f"{number}/{place}/{index}"], check)
            if points is None:
                return None
            verdicts.append(points)
        elif isinstance(check, Similar):
            cosine = cosines.get((answer.text, check.text), 0.0)
            near = cosine >= check.at_least
            verdicts.append(Verdict(near, max(0.0, cosine), "" if near else f"cosine {cosine:.2f}"))
        else:
            verdicts.append(check(answer))
    why = "; ".join(verdict.why for verdict in verdicts if not verdict.passed and verdict.why)
    score = sum(verdict.score for verdict in verdicts) / len(verdicts)
    return Verdict(all(verdict.passed for verdict in verdicts), score, why)
