"""Two answers beside each other: the same, parted where two tokens are as good as equally likely, or wrong."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan

from engine.verify.answers import Said

TOLERANCES = {"float32": 2e-3, "float16": 5e-2, "bfloat16": 3e-1}
"""Of a log-probability, by the compute dtype: bfloat16 has logits of 16 to 32 to an eighth."""
_ENOUGH = 0.5
"""Of the tokens that have to be compared: what parts early shows nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    ok: bool
    reason: str


def compare(expected: Said, found: Said, tolerance: float) -> Verdict:
    """Tokens and their log-probabilities, request by request, up to where they part."""
    worst, same, seen, wrong = 0.0, 0, 0, ""
    total = sum(map(len, expected.tokens))
    for number, (wanted, got) in enumerate(zip(expected.tokens, found.tokens, strict=True)):
        for place, (one, other) in enumerate(zip(wanted, got, strict=False)):
            likely, mine = expected.logprobs[number][place], found.logprobs[number][place]
            worst, seen = max(worst, _off(likely, mine)), seen + 1
            if one != other:
                # Where chance draws, or a form forbids, a number at a border may fall on either side of it.
                gap = likely[one] - likely.get(other, float("-inf"))
                if expected.greedy[number] and not gap <= 2 * tolerance and not wrong:
                    wrong = f"request {number} says {other} for {one} at token {place}, {gap:.2g} less likely"
                break
        else:
            same += wanted == got
            if len(wanted) != len(got) and not wrong:
                wrong = f"request {number} has {len(got)} tokens, not {len(wanted)}"
    told = f"{same} of {len(expected.tokens)} answers are the same, log-probabilities within {worst:.2g}"
    if not found.steady:
        return Verdict(False, f"two runs differ: a race? {told}")
    if wrong:
        return Verdict(False, f"{wrong}; {told}")
    if not worst <= tolerance:
        return Verdict(False, f"log-probabilities are off by {worst:.2g}, more than {tolerance:g}; {told}")
    if seen < _ENOUGH * total:
        return Verdict(False, f"answers part after {seen} of {total} tokens; {told}")
    return Verdict(True, told)


def _off(expected: dict[int, float], found: dict[int, float]) -> float:
    """The largest difference of a token that both tell of. What is not a number is infinitely far from one."""
    both = [abs(expected[token] - found[token]) for token in expected.keys() & found.keys()]
    return max((inf if isnan(difference) else difference for difference in both), default=inf)
