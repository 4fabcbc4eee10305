"""Compares two outputs: equal, diverging where two tokens are about equally likely, or wrong."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan

from engine.verify.outputs import EngineOutput

TOLERANCES = {"float32": 2e-3, "float16": 5e-2, "bfloat16": 3e-1}
"""Of a log-probability, by compute dtype: in bfloat16 logits from 16 to 32 have a resolution of an eighth."""
_ENOUGH = 0.5
"""Share of the tokens that must be comparable: answers that diverge early prove nothing."""


@dataclass(frozen=True, slots=True)
class Comparison:
    ok: bool
    reason: str


def compare(expected: EngineOutput, found: EngineOutput, tolerance: float) -> Comparison:
    """Compares tokens and their log-probabilities, request by request, up to where they diverge."""
    worst, same, seen, wrong = 0.0, 0, 0, ""
    total = sum(map(len, expected.tokens))
    for number, (wanted, got) in enumerate(zip(expected.tokens, found.tokens, strict=True)):
        for position, (one, other) in enumerate(zip(wanted, got, strict=False)):
            likely, mine = expected.logprobs[number][position], found.logprobs[number][position]
            worst, seen = max(worst, _off(likely, mine)), seen + 1
            if one != other:
                # In sampling, or where a grammar forbids tokens, rounding may decide between two tokens.
                gap = likely[one] - likely.get(other, float("-inf"))
                if expected.greedy[number] and not gap <= 2 * tolerance and not wrong:
                    wrong = (
                        f"request {number} has {other} for {one} at token {position}, {gap:.2g} less likely"
                    )
                break
        else:
            same += wanted == got
            if len(wanted) != len(got) and not wrong:
                wrong = f"request {number} has {len(got)} tokens, not {len(wanted)}"
    summary = f"{same} of {len(expected.tokens)} answers are the same, log-probabilities within {worst:.2g}"
    if not found.steady:
        return Comparison(False, f"two runs differ: a race? {summary}")
    if wrong:
        return Comparison(False, f"{wrong}; {summary}")
    if not worst <= tolerance:
        return Comparison(
            False, f"log-probabilities are off by {worst:.2g}, more than {tolerance:g}; {summary}"
        )
    if seen < _ENOUGH * total:
        return Comparison(False, f"answers diverge after {seen} of {total} tokens; {summary}")
    return Comparison(True, summary)


def _off(expected: dict[int, float], found: dict[int, float]) -> float:
    """The largest difference over the tokens that both report; NaN counts as infinite."""
    both = [abs(expected[token] - found[token]) for token in expected.keys() & found.keys()]
    return max((inf if isnan(difference) else difference for difference in both), default=inf)
