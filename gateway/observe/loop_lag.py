"""The lag of the event loop: while one request computes, all others wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

INTERVAL = 0.02
"""Seconds between two samples."""


async def watch(observe: Callable[[float], object]) -> None:
    """Call ``observe`` with the seconds by which a timer was late, until cancelled."""
    while True:
        due = time.perf_counter() + INTERVAL
        await asyncio.sleep(INTERVAL)
        observe(max(0.0, time.perf_counter() - due))
