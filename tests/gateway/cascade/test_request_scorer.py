"""Tests for the choice between the trained score and the kind of task."""

from __future__ import annotations

import pytest

from gateway.cascade.complexity import ComplexityClassifier
from gateway.cascade.scorers import RequestScorer, is_test_question
from gateway.cascade.task_kind import demand
from gateway.types import ChatRequest

OPTIONS = "Which of these is a noble gas?\nA. neon\nB. iron\nC. salt\nD. air\nAnswer:"
PROBLEM = (
    "Omar bought four pens at $1.20 each and six pads at $2.10 each. If he gave $20, how much change "
    "did he receive?"
)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("text", "trained"),
    [
        (OPTIONS, True),
        (PROBLEM, True),
        ("What is 2+2?", False),
        ("Prove that 3f+1 nodes are needed.", False),
        ("", False),
    ],
)
async def test_the_weights_are_asked_about_test_questions_alone(text: str, trained: bool) -> None:
    classifier = ComplexityClassifier.load()
    request = ChatRequest(model="m", messages=({"role": "user", "content": text},))
    expected = classifier.score(text, len(text)) if trained else demand(text, len(text))
    assert await RequestScorer(classifier).complexity(request) == expected


def test_code_with_numbers_is_no_test_question() -> None:
    text = "Refactor this:\n```\nx = 1\ny = 2\nprint(x + y)\n```\nand explain what changes in 3 lines."
    assert not is_test_question(text)
