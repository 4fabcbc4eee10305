"""The longest context, by priority."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def context_limit(most: int, caps: Sequence[tuple[int, int]], priority: int) -> int:
    """Most tokens of a prompt and its answer together, ``most`` at any rate.

    ``caps``: (priority, tokens), in ascending order: a cap holds for its priority and those below it, down to the
    next entry's.
    """
    position = bisect_left(caps, priority, key=lambda cap: cap[0])
    return min([most, *(cap for _, cap in caps[position : position + 1])])
