"""One model's results as the tools have them: an experiment on a data set."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.lab.evaluate.answer import Answer
from gateway.lab.evaluate.case import Case
from gateway.lab.evaluate.checks import Verdict
from gateway.lab.evaluate.evaluation import Evaluation, Result

_ID_DIGITS = 8
"""Of the run's id that are in an experiment's name."""


@dataclass(frozen=True, slots=True)
class Row:
    """A case, and what a model made of it."""

    case: Case
    answer: Answer
    verdict: Verdict | None

    @property
    def output(self) -> dict[str, Any]:
        answer = self.answer
        found: dict[str, Any] = {"answer": answer.text}
        if answer.tool_calls:
            found["tool_calls"] = [{"name": name, "arguments": text} for name, text in answer.tool_calls]
        return found

    @property
    def scores(self) -> dict[str, float]:
        """None where nobody knows."""
        verdict = self.verdict
        return {} if verdict is None else {"passed": float(verdict.passed), "score": verdict.score}

    @property
    def why(self) -> str:
        return "" if self.verdict is None else self.verdict.why


@dataclass(frozen=True, slots=True)
class Experiment:
    """``ended`` is Unix time. Of its rows' times only the durations are known."""

    data_set: str
    run: str
    model: str
    rows: Sequence[Row]
    ended: float

    @property
    def name(self) -> str:
        """The same for the same run, whenever it is exported."""
        return f"{self.model} {self.run[:_ID_DIGITS]}"

    def id_of(self, row: Row) -> str:
        """One result's own, for ids that are made of it."""
        return f"{self.run} {self.data_set} {self.model} {row.case.id}"


def inputs(case: Case) -> dict[str, Any]:
    """What was asked, as chat completions have it."""
    return dict(case.body)


def expected(case: Case) -> dict[str, Any]:
    return {"answer": case.reference} if case.reference else {}


def told(case: Case) -> Mapping[str, str]:
    return {"case": case.id, **({"task": case.task} if case.task else {})}


def experiments(evaluation: Evaluation, data_set: str, run: str) -> list[Experiment]:
    """One for each model. ``run`` is the evaluation's name."""
    now = time.time()
    return [
        Experiment(data_set, run, model, [_row(result) for result in results], now)
        for model, results in evaluation.results.items()
    ]


def _row(result: Result) -> Row:
    return Row(result.case, result.answer, result.verdict)
