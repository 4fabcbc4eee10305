"""What a gateway tells of a request by headers: how urgent it is, by when it must be done, what else it wants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_HIGHEST = 1000
_HEAVIEST = 100.0


@dataclass(frozen=True, slots=True)
class Hints:
    priority: int = 0
    """Higher goes first."""
    weight: float = 1.0
    """How much longer than one of weight 1 its prefix is kept."""
    deadline: float | None = None
    """A ``time.monotonic()``."""
    refuse_over_context: bool = False
    """Rather no answer than one of fewer tokens than ``max_tokens`` for want of context."""


def read_hints(headers: Mapping[bytes, bytes], now: float) -> Hints:
    """``x-tollgate-priority`` (a whole number, held within ±1000), ``x-tollgate-weight`` (held within 0.01 and 100),
    ``x-tollgate-deadline`` (seconds from ``now``) and ``x-tollgate-over-context`` (``refuse``).

    They are hints, not orders: a value that cannot be read is as good as none.
    """
    priority = _number(headers.get(b"x-tollgate-priority"))
    weight = _number(headers.get(b"x-tollgate-weight"))
    seconds = _number(headers.get(b"x-tollgate-deadline"))
    if priority is None or priority != int(priority):
        priority = 0
    return Hints(
        priority=max(-_HIGHEST, min(_HIGHEST, int(priority))),
        weight=1.0 if weight is None or weight <= 0 else min(_HEAVIEST, max(1 / _HEAVIEST, weight)),
        deadline=None if seconds is None else now + seconds,
        refuse_over_context=headers.get(b"x-tollgate-over-context") == b"refuse",
    )


def _number(value: bytes | None) -> float | None:
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
