"""A look at whether hours are over that nobody has judged yet: many may look, one judges."""

from __future__ import annotations

from functools import partial

from gateway.drift.detector import Least
from gateway.drift.hourly import judge_hour
from gateway.drift.table import HOUR, DriftTable
from gateway.policy.schema import DriftSettings

LATE = 180.0
"""Seconds after an hour's end until all have added their part. The clocks of all gateways should agree to much less."""
MOST_BEHIND = 24
"""Hours that are judged later, where no gateway ran when they ended."""


def judge_hours(table: DriftTable, settings: DriftSettings, now: float) -> None:
    """Blocks. Raises ``DatabaseError``."""
    newest = int((now - LATE) // HOUR * HOUR) - HOUR
    until = table.judged_until()
    if until is not None and until >= newest:
        return
    first = newest if until is None else max(until + HOUR, newest - (MOST_BEHIND - 1) * HOUR)
    least = Least(settings.least_requests, settings.least_psi)
    for hour in range(first, newest + HOUR, HOUR):
        table.judge(hour, partial(judge_hour, least=least, false_alarms=settings.false_alarms_per_month))
