"""A judge model before a set's cases: what it is asked of their answers, and what its reply means for them."""

from __future__ import annotations

from typing import Any

from gateway.evaluation import judge
from gateway.lab.evaluate.answer import Answer
from gateway.lab.evaluate.case import Case, Rubric
from gateway.lab.evaluate.checks import Verdict, failed


def scoring(case: Case, rubric: Rubric, answer: Answer) -> list[dict[str, Any]]:
    """The messages that ask for points."""
    return judge.scoring(case.question(), _shown(answer), rubric.text, case.reference)


def comparing(case: Case, rubric: Rubric, first: Answer, second: Answer) -> list[dict[str, Any]]:
    """The messages that ask which is better."""
    return judge.comparing(case.question(), _shown(first), _shown(second), rubric.text, case.reference)


def _shown(answer: Answer) -> str:
    return judge.shown(answer.text, answer.tool_calls)


def points(said: Answer, rubric: Rubric) -> Verdict | None:
    """None where the judge said nothing that can be read."""
    found = judge.points(said.text)
    if found is None:
        return None
    if found.given >= rubric.at_least:
        return Verdict(True, found.score, found.why)
    why = found.why or failed(f"{found.given:g} of {judge.MOST} points").why
    return Verdict(False, found.score, why)


def better(said: Answer) -> str | None:
    """``first``, ``second`` or ``tie``; None where it cannot be read."""
    return judge.better(said.text)


def preferred(as_first: str | None, as_second: str | None) -> int | None:
    """Of both replies about a pair; see ``gateway.evaluation.judge``."""
    return judge.preferred(as_first, as_second)
