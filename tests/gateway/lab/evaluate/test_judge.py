"""What a judge is shown, and how its words are read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.lab.evaluate import judge
from gateway.lab.evaluate.answer import Answer
from gateway.lab.evaluate.case import Case, Rubric
from tests.examples import examples

RUBRIC = Rubric("Is it polite?", 4)
CASE = Case("a", {"messages": [{"role": "user", "content": "Hello {x}"}]}, (RUBRIC,), "", "Good day.")


def test_a_judge_sees_request_reference_answer_and_rubric() -> None:
    (message,) = judge.scoring(CASE, RUBRIC, Answer(text="Hi {y}", tool_calls=(("f", "{}"),)))
    for part in ("user: Hello {x}", "Good day.", "Hi {y}", "[calls f({})]", "Is it polite?", '"score": N'):
        assert part in message["content"]


@settings(max_examples=examples(100))
@given(st.text(max_size=80))
def test_no_answer_closes_its_marks(text: str) -> None:
    (message,) = judge.scoring(CASE, RUBRIC, Answer(text=text))
    digests = {
        line.split()[-1].rstrip(">")
        for line in message["content"].split("\n")
        if line.startswith("<</answer ")
    }
    closing = [f"<</answer {digest}>>" for digest in digests if len(digest) == 12]
    assert any(message["content"].count(mark) == 1 and mark not in text for mark in closing)


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ('{"why": "so", "score": 4}', 0.75),
        ('Let me think {about it}.\n```json\n{"score": 5}\n```', 1.0),
        ('{"score": 1} no, {"score": 2}', 0.25),
        ('{"score": 0}', None),
        ('{"score": "5"}', None),
        ('{"score": true}', None),
        ("five", None),
        ("{" * 50_000, None),
    ],
)
def test_points(said: str, score: float | None) -> None:
    verdict = judge.points(Answer(text=said), RUBRIC)
    assert (verdict.score if verdict is not None else None) == score
    if verdict is not None:
        assert verdict.passed is (verdict.score >= 0.75)


@pytest.mark.parametrize(
    ("said", "better"),
    [('{"better": "first"}', "first"), ('{"better": "tie"}', "tie"), ('{"better": "A"}', None), ("", None)],
)
def test_the_better_of_two(said: str, better: str | None) -> None:
    assert judge.better(Answer(text=said)) == better
