"""Which patterns are proven to take time that grows with the text and no faster, whatever the text is.

Python's engine tries one way of matching after the other, from every place of the text. Where the ways from one place
are few, and none is long, the time is at most their number times the text's length. That holds for patterns without
unbounded repetitions, as far as the product of their choices is small; and for one such repetition of a single
character's kind at the very end, as nothing that follows can fail: what it has passed over is part of the match.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

STEPS = 256
"""Of the engine, from one place, at most."""
ALL_STEPS = 2048
"""Of all patterns of a guard together."""
_ONE = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN", "AT"})


def are_linear(patterns: Iterable[str]) -> bool:
    """Whether all are, and together take few steps for each character. Others may be so without being proven."""
    total = 0
    for pattern in patterns:
        cost = steps(pattern)
        if cost is None:
            return False
        total += cost
    return total <= ALL_STEPS


def steps(pattern: str) -> int | None:
    """How many the engine takes from one place at most. None where that is more than ``STEPS`` or not known."""
    try:
        from re import _parser  # type: ignore[attr-defined]

        items = list(_parser.parse(pattern))
        if items and str(items[-1][0]) in ("MAX_REPEAT", "MIN_REPEAT"):
            least, _, body = items[-1][1]
            if len(body) == 1 and str(body[0][0]) in _ONE - {"AT"}:
                items[-1] = (items[-1][0], (least, least, body))
        _, cost = _sequence(items)
    except (_Unknown, ImportError):
        return None
    return cost if cost <= STEPS else None


class _Unknown(Exception):
    """Not proven."""


def _sequence(items: Sequence[Any]) -> tuple[int, int]:
    """In how many ways it can match at one place, and the steps of trying all of them."""
    ways, cost = 1, 0
    for operation, argument in items:
        more, each = _item(str(operation), argument)
        cost += ways * each
        ways *= more
        if cost > STEPS or ways > STEPS:
            raise _Unknown
    return ways, cost


def _item(name: str, argument: Any) -> tuple[int, int]:
    if name in _ONE:
        return 1, 1
    if name == "SUBPATTERN":
        return _sequence(argument[-1])
    if name == "BRANCH":
        alternatives = [_sequence(one) for one in argument[1]]
        return sum(ways for ways, _ in alternatives), sum(cost for _, cost in alternatives) + 1
    if name in ("ASSERT", "ASSERT_NOT"):
        return 1, _sequence(argument[1])[1] + 1
    if name in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, body = argument
        if most > STEPS:
            raise _Unknown
        each, once = _sequence(body)
        ways = cost = 0
        reached = 1
        for times in range(most + 1):
            if times >= least:
                ways += reached
            if times < most:
                cost += reached * once
                reached *= each
            if cost > STEPS or ways > STEPS:
                raise _Unknown
        return ways, cost + 1
    raise _Unknown  # references back, conditions, what later versions bring
