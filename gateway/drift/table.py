"""The hours' sketches, what is usual of each measure, and the drifts that were found, in the ledger's database: workers
and replicas add their parts to the same rows. Its methods wait for the database, and are called in threads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import orjson

from gateway.databases.database import Change, Found
from gateway.databases.migrations import Migrations
from gateway.databases.own_tables import OwnTables
from gateway.drift.detector import Usual
from gateway.drift.hour_sketch import HourSketch

DRIFT = Migrations(
    "drift",
    (
        (
            """
CREATE TABLE drift_hours (
    hour BIGINT NOT NULL,
    model TEXT NOT NULL,
    route TEXT NOT NULL,
    sketch TEXT NOT NULL,
    PRIMARY KEY (hour, model, route)
)""",
            """
CREATE TABLE drift_usual (
    model TEXT NOT NULL,
    route TEXT NOT NULL,
    measures TEXT NOT NULL,
    PRIMARY KEY (model, route)
)""",
            """
CREATE TABLE drift_found (
    model TEXT NOT NULL,
    route TEXT NOT NULL,
    measure TEXT NOT NULL,
    since BIGINT NOT NULL,
    until BIGINT,
    facts TEXT NOT NULL,
    told INTEGER NOT NULL,
    PRIMARY KEY (model, route, measure, since)
)""",
            "CREATE TABLE drift_clock (name TEXT PRIMARY KEY, hour BIGINT NOT NULL)",
        ),
    ),
)
HOUR, DAY = 3600, 86_400
WEEK = 168 * HOUR
WEEKS = 4
KEPT = WEEKS * WEEK + 7 * DAY
"""Seconds for which sketches are kept: a week more than is compared with, for who looks back."""
FOUND_KEPT = 400 * DAY
MOST_SERIES = 200
"""Models and routes of an hour; further ones are not counted."""


class Place(NamedTuple):
    model: str
    route: str


@dataclass(frozen=True, slots=True)
class FoundDrift:
    """``since`` and ``until`` are hours (Unix time); ``until`` is None while it lasts."""

    model: str
    route: str
    measure: str
    since: int
    until: int | None
    facts: Mapping[str, Any]


Judge = Callable[["HourRows"], None]


class DriftTable(OwnTables):
    """All methods raise ``DatabaseError``."""

    def add(self, sketches: Mapping[tuple[int, Place], HourSketch]) -> None:
        """Add to what is there, all of it or nothing."""

        def change(one: Change) -> None:
            for (hour, place), sketch in sketches.items():
                where = {"hour": hour, **place._asdict()}
                found = one.rows(f"SELECT sketch FROM drift_hours WHERE {_HERE}", where)
                if found:
                    whole = HourSketch.from_json(orjson.loads(found[0]["sketch"]))
                    whole.merge(sketch)
                    one.run(f"UPDATE drift_hours SET sketch = :sketch WHERE {_HERE}", where | _text(whole))
                    continue
                [counted] = one.rows(
                    "SELECT count(*) AS places FROM drift_hours WHERE hour = :hour", {"hour": hour}
                )
                if counted["places"] < MOST_SERIES:
                    one.run(
                        "INSERT INTO drift_hours (hour, model, route, sketch) VALUES (:hour, :model, :route, :sketch)",
                        where | _text(sketch),
                    )

        self._change(change)

    def judged_until(self) -> int | None:
        """The last hour that was judged; None before the first."""
        found = self._rows(_CLOCK, {})
        return int(found[0]["hour"]) if found else None

    def judge(self, hour: int, judge: Judge) -> bool:
        """``judge`` an hour in one transaction, which excludes all others of this set: whoever comes second finds it
        done, and who is killed leaves it undone. False where it was done."""

        def change(one: Change) -> bool:
            found = one.rows(_CLOCK, {})
            if found and found[0]["hour"] >= hour:
                return False
            rows = HourRows(one, hour)
            judge(rows)
            rows.sweep()
            if found:
                one.run("UPDATE drift_clock SET hour = :hour WHERE name = 'judged'", {"hour": hour})
            else:
                one.run("INSERT INTO drift_clock (name, hour) VALUES ('judged', :hour)", {"hour": hour})
            return True

        return self._change(change)

    def found(self, since: int = 0) -> list[FoundDrift]:
        """Those that last, and those that ended since then; the newest first."""
        query = f"{_FOUND} WHERE until IS NULL OR until >= :since ORDER BY since DESC, model, route, measure"
        return [_found(row) for row in self._rows(query, {"since": since})] if self.exists else []

    def lasting(self) -> list[FoundDrift]:
        return [one for one in self.found(2**62) if one.until is None]

    def claim(self) -> list[FoundDrift]:
        """Those that nobody has told, which the caller is to tell: nobody else gets them."""

        def change(one: Change) -> list[FoundDrift]:
            found = one.rows(f"{_FOUND} WHERE told = 0 ORDER BY since, model, route, measure", {})
            if found:
                one.run("UPDATE drift_found SET told = 1 WHERE told = 0", {})
            return [_found(row) for row in found]

        if not self._rows("SELECT measure FROM drift_found WHERE told = 0 LIMIT 1", {}):
            return []
        return self._change(change)

    def usual(self) -> dict[Place, dict[str, Usual]]:
        if not self.exists:
            return {}
        return _usual(self._rows("SELECT model, route, measures FROM drift_usual", {}))

    def hours(self, since: int, until: int, place: Place) -> dict[int, HourSketch]:
        """Of a model and route, from ``since`` to before ``until``."""
        if not self.exists:
            return {}
        given = {"since": since, "until": until, **place._asdict()}
        query = f"SELECT hour, sketch FROM drift_hours WHERE hour >= :since AND hour < :until AND {_PLACE}"
        return {
            row["hour"]: HourSketch.from_json(orjson.loads(row["sketch"])) for row in self._rows(query, given)
        }


class HourRows:
    """What is read and written to judge one hour."""

    def __init__(self, change: Change, hour: int) -> None:
        self._change = change
        self.hour = hour

    def sketches(self, hour: int) -> dict[Place, HourSketch]:
        rows = self._change.rows(
            "SELECT model, route, sketch FROM drift_hours WHERE hour = :hour", {"hour": hour}
        )
        return {
            Place(row["model"], row["route"]): HourSketch.from_json(orjson.loads(row["sketch"]))
            for row in rows
        }

    def usual(self) -> dict[Place, dict[str, Usual]]:
        return _usual(self._change.rows("SELECT model, route, measures FROM drift_usual", {}))

    def keep(self, place: Place, measures: Mapping[str, Usual]) -> None:
        text = json.dumps({name: one.to_json() for name, one in measures.items()}, separators=(",", ":"))
        given = {**place._asdict(), "measures": text}
        self._change.run(
            "INSERT INTO drift_usual (model, route, measures) VALUES (:model, :route, :measures) "
            "ON CONFLICT (model, route) DO UPDATE SET measures = excluded.measures",
            given,
        )

    def begins(self, drift: FoundDrift) -> None:
        given = {**asdict(drift), "facts": orjson.dumps(drift.facts).decode()}
        self._change.run(
            "INSERT INTO drift_found (model, route, measure, since, until, facts, told) "
            "VALUES (:model, :route, :measure, :since, :until, :facts, 0)",
            given,
        )

    def ends(self, place: Place, measure: str) -> None:
        self._change.run(
            f"UPDATE drift_found SET until = :until WHERE until IS NULL AND measure = :measure AND {_PLACE}",
            {**place._asdict(), "measure": measure, "until": self.hour},
        )

    def sweep(self) -> None:
        self._change.run("DELETE FROM drift_hours WHERE hour < :before", {"before": self.hour - KEPT})
        self._change.run("DELETE FROM drift_found WHERE until < :before", {"before": self.hour - FOUND_KEPT})
        if self.hour % DAY == 0:
            self._change.run(f"DELETE FROM drift_usual WHERE {_GONE.format(table='drift_usual')}", {})
            self._change.run(
                f"UPDATE drift_found SET until = :hour WHERE until IS NULL AND {_GONE.format(table='drift_found')}",
                {"hour": self.hour},
            )


_PLACE = "model = :model AND route = :route"
_HERE = f"hour = :hour AND {_PLACE}"
_GONE = (
    "NOT EXISTS (SELECT 1 FROM drift_hours WHERE drift_hours.model = {table}.model "
    "AND drift_hours.route = {table}.route)"
)
"""What was not asked for as long as sketches are kept."""
_CLOCK = "SELECT hour FROM drift_clock WHERE name = 'judged'"
_FOUND = "SELECT model, route, measure, since, until, facts FROM drift_found"


def _text(sketch: HourSketch) -> dict[str, str]:
    return {"sketch": orjson.dumps(sketch.to_json()).decode()}


def _found(row: Found) -> FoundDrift:
    return FoundDrift(**{**row, "facts": orjson.loads(row["facts"])})


def _usual(rows: Iterable[Found]) -> dict[Place, dict[str, Usual]]:
    return {
        Place(row["model"], row["route"]): {
            name: Usual.from_json(one) for name, one in orjson.loads(row["measures"]).items()
        }
        for row in rows
    }
