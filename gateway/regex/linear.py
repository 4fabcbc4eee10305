"""Which patterns provably take linear time.

Python's engine tries one way of matching after the other, from every position. If the steps from one position are
bounded, the time is at most that bound times the text's length. They are for patterns without unbounded repetitions, if
the product of their choices is small, and with one unbounded repetition of a single character class at the very end, as
nothing that follows can fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

STEPS = 256
"""The engine's steps from one position, at most."""
ALL_STEPS = 2048
"""Of all patterns of a guard together."""
_ONE = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN", "AT"})


def are_linear(patterns: Iterable[str]) -> bool:
    """Whether all provably are, with few steps in total for each character."""
    total = 0
    for pattern in patterns:
        cost = steps(pattern)
        if cost is None:
            return False
        total += cost
    return total <= ALL_STEPS


def steps(pattern: str) -> int | None:
    """The engine's steps from one position at most; None if that is more than ``STEPS`` or unknown."""
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
    """The number of ways to match at one position, and the steps of trying them all."""
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
    raise _Unknown  # back-references, conditionals, and whatever later versions add
