"""What is sent: scores of each kind, and an evaluation of two models."""

from __future__ import annotations

from gateway.lab.evaluate.answer import Answer
from gateway.lab.evaluate.case import Case
from gateway.lab.evaluate.checks import PASSED, failed
from gateway.lab.evaluate.evaluation import Evaluation, Plan, Result
from gateway.lab.evaluate.export.experiment import Experiment, experiments
from gateway.observe.telemetry.score import Score
from gateway.spans import ids_of

REQUEST = "req_1a2267261e455cdbdd94d111"


def scores() -> list[Score]:
    trace_id, span_id = ids_of(REQUEST)
    kinds = [
        (1.0, "good", "It is right.", "human"),
        (0.123456, None, None, "model"),
        (None, "wrong", None, "code"),
        (None, None, "odd " * 500, "human"),
    ]
    return [
        Score(REQUEST, f"score {place}", value, label, comment, source, trace_id, span_id, 1795941360.25)
        for place, (value, label, comment, source) in enumerate(kinds)
    ]


def evaluated() -> list[Experiment]:
    cases = [
        Case(f"q{place}", {"messages": [{"role": "user", "content": f"{place}?"}]}, (), "sums", str(place))
        for place in range(3)
    ]
    right = [Result(case, Answer(case.reference, seconds=0.5, cost=0.01), PASSED) for case in cases]
    wrong = [
        Result(cases[0], Answer("", (("add", '{"a": 1}'),), seconds=0.25), failed("no number")),
        Result(cases[1], Answer(error="400 no: no"), failed("400 no: no")),
        Result(cases[2], Answer("2"), None),
    ]
    evaluation = Evaluation(Plan(cases, ["good", "bad"]), {"good": right, "bad": wrong}, {}, None)
    return experiments(evaluation, "golden", "fb15d526" * 4)
