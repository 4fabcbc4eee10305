"""What the keys of ``drift`` do: a language that twice as many ask in is found, or not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.databases.opening import open_tables
from gateway.drift.hour_sketch import HourSketch
from gateway.drift.table import DRIFT, HOUR, WEEK, DriftTable, Place
from gateway.drift.watch import LATE
from gateway.policy.schema import LedgerSettings
from tests.drifts import settled
from tests.e2e.keys.harness import a_site, shows

pytestmark = pytest.mark.anyio

FAKE = Place("fake", "/v1/chat/completions")


def sketch(portuguese: int) -> HourSketch:
    return HourSketch({"languages": Counter({"en": 1000 - portuguese, "pt": portuguese})})


def changing(table: DriftTable) -> None:
    """The last hours, and the same of four weeks, as if a week had been judged before."""
    now = int(time.time()) // HOUR * HOUR
    hours = range(now - 8 * HOUR, now + 2 * HOUR, HOUR)
    table.add(
        {(hour, FAKE): sketch(100) for hour in hours}
        | {(hour - WEEK * back, FAKE): sketch(50) for hour in hours for back in range(1, 5)}
    )
    table.judge(now - 8 * HOUR, lambda rows: rows.keep(FAKE, {"languages": settled()}))


async def found(folder: Path, policy: dict[str, Any]) -> list[str]:
    """The measures that are found to drift, once all hours are judged that are over."""
    table = DriftTable(open_tables(DRIFT, LedgerSettings(), folder / "state"))
    changing(table)
    async with a_site(folder, policy), asyncio.timeout(300):
        while "drift" in policy and not _is_judged(table):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return [one.measure for one in table.found()]


def _is_judged(table: DriftTable) -> bool:
    return (table.judged_until() or 0) + 2 * HOUR + LATE > time.time()


@shows("drift", "drift.least_requests", "drift.least_psi", "drift.false_alarms_per_month")
@pytest.mark.parametrize(
    ("policy", "measures"),
    [
        ({"drift": {}}, ["languages"]),
        ({}, []),
        ({"drift": {"least_requests": 1001}}, []),
        ({"drift": {"least_psi": 0.2}}, []),
        ({"drift": {"false_alarms_per_month": 1e-18}}, []),
    ],
    ids=["on", "off", "requests", "psi", "alarms"],
)
async def test_what_is_found(tmp_path: Path, policy: dict[str, Any], measures: list[str]) -> None:
    (tmp_path / "state").mkdir()
    assert await found(tmp_path, policy) == measures
