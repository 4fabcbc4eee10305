"""Reasoning budgets: once an answer has reasoned for as many tokens as it may, its closing tag is said for it.

What is forced at a position follows from the tokens before it alone, so that preemption, batches and draft tokens
change nothing. Before a budget is spent, and after its closing tag, a step compares two numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.sampling_params import ReasoningBudget
from engine.core.sampling_row import SamplingRow

_HEAD = 4
"""Tokens among which an answer begins to reason: white space may come before its tag, or a channel's header."""


def forced(rows: Sequence[SamplingRow]) -> dict[int, int]:
    """By row, the tokens that budgets demand instead of those that are sampled."""
    found = {}
    for i, row in enumerate(rows):
        if row.sampling.reasoning is not None:
            token = _forced(row, row.sampling.reasoning)
            if token is not None:
                found[i] = token
    return found


def _forced(row: SamplingRow, budget: ReasoningBudget) -> int | None:
    said = row.position - row.prompt_length
    if not budget.tokens <= said < _HEAD + budget.tokens + len(budget.closing):
        return None
    answer = [*row.history[row.prompt_length :], *row.draft_tokens]
    start = 0
    if budget.begin is not None:
        if budget.begin not in answer[:_HEAD]:
            return None
        start = answer.index(budget.begin) + 1
    place = said - start - budget.tokens
    if not 0 <= place < len(budget.closing) or budget.end in answer[start : start + budget.tokens]:
        return None
    return budget.closing[place]
