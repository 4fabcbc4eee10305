"""How deeply what a provider sends may be nested."""

from __future__ import annotations

from gateway.types import Json

DEEPEST = 90
"""Levels of objects and lists in a block or a part; none that is documented has ten."""


def check_levels(value: Json) -> None:
    """Whoever walks through it may count on an end. Raises ``TypeError``."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            one
            for each in level
            if isinstance(each, dict | list)
            for one in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise TypeError("nested without end")
