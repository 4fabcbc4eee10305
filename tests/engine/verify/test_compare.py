from __future__ import annotations

from dataclasses import replace

import pytest

from engine.verify.compare import compare
from engine.verify.outputs import EngineOutput

LIKELY = {1: -0.1, 2: -0.102, 3: -4.0}


def outputs(*answers: list[int], **changes: object) -> EngineOutput:
    logprobs = [[LIKELY] * len(tokens) for tokens in answers]
    made = EngineOutput([list(tokens) for tokens in answers], logprobs, [True] * len(answers))
    return replace(made, **changes)


def test_the_same_is_the_same() -> None:
    verdict = compare(outputs([1, 1, 1], [1, 2, 1]), outputs([1, 1, 1], [1, 2, 1]), 0.001)
    assert verdict.ok and verdict.reason.startswith("2 of 2 answers are the same")


def test_answers_may_part_at_a_tie_and_not_elsewhere() -> None:
    expected = outputs([1, 1, 1, 1], [1, 1, 1, 1])
    assert compare(expected, outputs([1, 1, 1, 1], [1, 1, 2, 9]), 0.001).ok
    parted = compare(expected, outputs([1, 1, 1, 1], [1, 1, 3, 9]), 0.001)
    assert not parted.ok and "request 1 has 3 for 1 at token 2, 3.9 less likely" in parted.reason
    strange = compare(expected, outputs([1, 1, 1, 1], [1, 1, 7, 9]), 0.001)
    assert not strange.ok and "inf less likely" in strange.reason
    # Where tokens are drawn, the numbers decide.
    sampled = replace(expected, greedy=[True, False])
    assert compare(sampled, outputs([1, 1, 1, 1], [1, 1, 3, 9]), 0.001).ok


def test_numbers_that_are_off_are_wrong_though_tokens_are_not() -> None:
    off = outputs([1, 1], logprobs=[[LIKELY, {**LIKELY, 3: -4.2}]])
    assert compare(outputs([1, 1]), off, 0.3).ok
    verdict = compare(outputs([1, 1]), off, 0.1)
    assert not verdict.ok and "off by 0.2, more than 0.1" in verdict.reason
    nothing = outputs([1, 1], logprobs=[[LIKELY, {1: float("nan")}]])
    assert not compare(outputs([1, 1]), nothing, 0.1).ok


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (outputs([1, 1, 1, 1], steady=False), "two runs differ"),
        (outputs([1, 1, 1]), "has 3 tokens, not 4"),
        (outputs([2, 1, 1, 1]), "diverge after 1 of 4"),
    ],
)
def test_what_shows_nothing_or_does_not_hold_is_wrong(found: EngineOutput, reason: str) -> None:
    verdict = compare(outputs([1, 1, 1, 1]), found, 0.001)
    assert not verdict.ok and reason in verdict.reason
