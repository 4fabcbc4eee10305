"""How late the event loop is: what one request computes without a pause, all others wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

INTERVAL = 0.02
"""Seconds between two looks."""


async def watch(observe: Callable[[float], object]) -> None:
    """Tell ``observe``, over and over, by how many seconds a timer came late. Runs until it is cancelled."""
    while True:
        due = time.perf_counter() + INTERVAL
        await asyncio.sleep(INTERVAL)
        observe(max(0.0, time.perf_counter() - due))
