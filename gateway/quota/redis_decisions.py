"""Reservations on their way to Redis, and what it says of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from gateway.quota.counters import QuotaDecision
from gateway.quota.limits import Amounts, Limits
from gateway.stores.script import Command

_DATA_LOST = [-2]
_FIRST_COUNT = 3 + len(Amounts._fields)
"""In the answer to a reservation: before it are its decision and what is held."""


@dataclass(slots=True)
class Reservation:
    request_id: str
    limits: Limits
    command: Command
    decision: asyncio.Future[QuotaDecision]
    extends: bool
    """It is settled with the reservation that it extends."""

    def refuse(self, error: Exception) -> None:
        if not self.decision.done():
            self.decision.set_exception(error)


def decided(answer: Any) -> QuotaDecision | None:
    """None where the server has not decided: an error, or ``data_lost``."""
    figures = _figures(answer)
    if len(figures) < _FIRST_COUNT:
        return None
    admitted, refused, wait = figures[:3]
    return QuotaDecision(
        admitted=admitted == 1,
        used=tuple(figures[_FIRST_COUNT::2]),
        reset=tuple([reset / 1000 for reset in figures[_FIRST_COUNT + 1 :: 2]]),
        refused=refused,
        wait=wait / 1000 if wait >= 0 else None,
        granted=Amounts(*figures[3:_FIRST_COUNT]) if admitted == 1 else None,
    )


def data_lost(answer: Any) -> bool:
    return _figures(answer) == _DATA_LOST


def _figures(answer: Any) -> list[int]:
    return [] if isinstance(answer, Exception) else [int(figure) for figure in answer.split()]
