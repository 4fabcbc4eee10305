"""What a gateway tells of a request by headers: how urgent it is, and by when it must be done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_HIGHEST = 1000


@dataclass(frozen=True, slots=True)
class Hints:
    priority: int = 0
    """Higher goes first."""
    deadline: float | None = None
    """A ``time.monotonic()``."""


def read_hints(headers: Mapping[bytes, bytes], now: float) -> Hints:
    """``x-tollgate-priority`` (a whole number, held within ±1000) and ``x-tollgate-deadline`` (seconds from ``now``).

    They are hints, not orders: a value that cannot be read is as good as none.
    """
    priority = _number(headers.get(b"x-tollgate-priority"))
    seconds = _number(headers.get(b"x-tollgate-deadline"))
    if priority is None or priority != int(priority):
        priority = 0
    return Hints(
        priority=max(-_HIGHEST, min(_HIGHEST, int(priority))),
        deadline=None if seconds is None else now + seconds,
    )


def _number(value: bytes | None) -> float | None:
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
