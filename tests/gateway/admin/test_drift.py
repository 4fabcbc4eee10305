"""``/admin/api/drift`` and the panel that shows it."""

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
from gateway.policy.schema import LedgerSettings
from tests.drifts import settled
from tests.serving import KEY, key, serving

pytestmark = pytest.mark.anyio

ADMIN = "tg-admin-of-drifts"
PLACE = Place("m", "/v1/chat/completions")


def policy(**more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "admin": {"enabled": True},
        "backends": {"a": {"kind": "fake", "script": [{"reply": "one"}]}},
        "models": {"m": {"targets": [{"backend": "a", "model": "x"}]}},
        "keys": [key(ADMIN, "boss", scopes=["admin"]), key(KEY, "acme-1")],
        **more,
    }


def sketch(portuguese: int, place: int) -> HourSketch:
    return HourSketch(
        {
            "languages": Counter({"en": 1000 - portuguese, "pt": portuguese}),
            "cost": Counter({place + at: 100 for at in range(10)}),
        }
    )


def drifting(table: DriftTable) -> None:
    """Four weeks, and hours up to now in which more ask in Portuguese, at a higher cost."""
    now = int(time.time()) // HOUR * HOUR
    hours = range(now - 8 * HOUR, now + 2 * HOUR, HOUR)
    table.add(
        {(hour, PLACE): sketch(150, 330) for hour in hours}
        | {(hour - WEEK * back, PLACE): sketch(50, 325) for hour in hours for back in range(1, 5)}
    )
    known = {"languages": settled(), "cost": settled()}
    table.judge(now - 8 * HOUR, lambda rows: rows.keep(PLACE, known))


async def test_a_drift_is_shown_with_how_it_was_and_is(tmp_path: Path) -> None:
    drifting(DriftTable(open_tables(DRIFT, LedgerSettings(), tmp_path)))
    headers = {"authorization": f"Bearer {ADMIN}"}
    async with serving(tmp_path / "p", policy(drift={}), state_dir=tmp_path) as gateway, asyncio.timeout(300):
        while not (found := (await gateway.http.get("/admin/api/drift", headers=headers)).json())["drifts"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        refused = await gateway.http.get("/admin/api/drift")
    assert refused.status_code == 403
    assert found["enabled"] and (found["measures"], found["settled"]) == (2, 2)
    drifts = {one["measure"]: one for one in found["drifts"]}
    assert set(drifts) == {"cost", "languages"}
    language = drifts["languages"]
    assert abs(language["now"] - language["before"]) == pytest.approx(0.1)
    assert {bar["name"]: (bar["before"], bar["now"]) for bar in language["bars"]} == {
        "en": (0.95, 0.85),
        "pt": (0.05, 0.15),
    }
    cost = drifts["cost"]
    assert cost["now"] / cost["before"] == pytest.approx(1.22, rel=0.02)
    assert 1e-4 < cost["now"] < 1e-2, "in dollars"
    assert sum(bar["before"] for bar in cost["bars"]) == pytest.approx(1.0, abs=0.001)
    assert sum(bar["now"] for bar in cost["bars"]) == pytest.approx(1.0, abs=0.001)
    assert len(cost["hours"]) == 168 and cost["hours"][-1] == pytest.approx(cost["now"])
    assert cost["hours"][40] is None


async def test_without_the_key_there_is_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path / "p", policy(), state_dir=tmp_path) as gateway:
        answer = await gateway.http.get("/admin/api/drift", headers={"authorization": f"Bearer {ADMIN}"})
    assert answer.json() == {"enabled": False, "measures": 0, "settled": 0, "drifts": []}
