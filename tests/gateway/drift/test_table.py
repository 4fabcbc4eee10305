"""The tables of drifts in both databases: parts of several workers, one judge, and what is told once."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from gateway.databases.opening import open_tables
from gateway.drift.detector import Usual
from gateway.drift.hour_sketch import HourSketch
from gateway.drift.table import DRIFT, HOUR, KEPT, MOST_SERIES, WEEK, DriftTable, FoundDrift, HourRows, Place
from gateway.drift.watch import LATE, judge_hours
from gateway.policy.schema import DriftSettings, LedgerSettings
from tests.drifts import settled
from tests.postgres_server import PostgresServer

M = Place("m", "/v1/chat/completions")
NOW = 2000 * WEEK
"""The beginning of an hour."""


@pytest.fixture(params=["sqlite", "postgres"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> DriftTable:
    ledger = LedgerSettings()
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        ledger = LedgerSettings(store=server.url(server.new_database()))
    return DriftTable(open_tables(DRIFT, ledger, tmp_path))


def one(refusals: int, requests: int = 1000) -> HourSketch:
    return HourSketch({"refusals": Counter({1: refusals, 0: requests - refusals})})


def test_a_table_that_was_never_written_is_empty(table: DriftTable) -> None:
    assert (table.found(), table.usual(), table.hours(0, NOW, M)) == ([], {}, {})
    assert (table.judged_until(), table.claim(), table.lasting()) == (None, [], [])


def test_parts_of_several_workers_are_one_hour(table: DriftTable) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda part: table.add({(NOW, M): one(part, 10)}), range(8)))
    assert table.hours(NOW, NOW + HOUR, M)[NOW].of("refusals") == {1: 28, 0: 52}


def test_an_hour_has_so_many_models_and_routes_at_most(table: DriftTable) -> None:
    table.add({(NOW, Place(f"m{number}", "/")): one(0, 1) for number in range(MOST_SERIES)})
    table.add({(NOW, M): one(1), (NOW, Place("m7", "/")): one(0, 1)})
    assert table.hours(NOW, NOW + HOUR, M) == {}
    assert table.hours(NOW, NOW + HOUR, Place("m7", "/"))[NOW].of("refusals").total() == 2


def test_of_many_who_look_one_judges(table: DriftTable) -> None:
    judged: list[int] = []

    def judge(rows: HourRows) -> None:
        judged.append(rows.hour)

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(lambda _: table.judge(NOW, judge), range(4))) == 1
    assert judged == [NOW]
    assert table.judged_until() == NOW


def test_a_judge_who_is_stopped_leaves_the_hour_to_the_next(table: DriftTable) -> None:
    def stopped(rows: HourRows) -> None:
        rows.keep(M, {"refusals": Usual()})
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        table.judge(NOW, stopped)
    assert table.usual() == {}
    assert table.judge(NOW, lambda rows: None)


def four_weeks(table: DriftTable, hours: int = 3) -> None:
    draw = Random(1)
    parts = {
        (NOW + HOUR * hour - WEEK * back, M): one(sum(draw.random() < 0.01 for _ in range(1000)))
        for hour in range(hours)
        for back in range(1, 5)
    }
    table.add(parts)


def settle(table: DriftTable) -> None:
    """As if a week had been judged."""
    table.judge(NOW - HOUR, lambda rows: rows.keep(M, {"refusals": settled()}))


def test_a_drift_is_found_told_once_and_ends(table: DriftTable) -> None:
    four_weeks(table)
    settle(table)
    table.add({(NOW, M): one(60), (NOW + HOUR, M): one(60)})
    judge_hours(table, DriftSettings(), NOW + 2 * HOUR + LATE)
    [found] = table.lasting()
    assert (found.model, found.route, found.measure, found.since) == (*M, "refusals", NOW + HOUR)
    assert found.facts["now"] == 0.06 and found.facts["before"] == pytest.approx(0.01, abs=0.005)
    assert found.facts["test"] == "psi"
    with ThreadPoolExecutor(4) as threads:
        claimed = [drift for part in threads.map(lambda _: table.claim(), range(4)) for drift in part]
    assert claimed == [found]
    assert table.usual()[M]["refusals"].since == found.since
    table.judge(NOW + 2 * HOUR, lambda rows: rows.ends(M, "refusals"))
    assert table.lasting() == []
    assert table.found(NOW) == [FoundDrift(*M, "refusals", NOW + HOUR, NOW + 2 * HOUR, found.facts)]


def test_an_hour_is_judged_once_all_have_told_of_it(table: DriftTable) -> None:
    judge_hours(table, DriftSettings(), NOW + HOUR + LATE - 1)
    assert table.judged_until() == NOW - HOUR
    judge_hours(table, DriftSettings(), NOW + HOUR + LATE)
    assert table.judged_until() == NOW


def test_with_one_earlier_week_nothing_is_judged(table: DriftTable) -> None:
    table.add({(NOW, M): one(500), (NOW - WEEK, M): one(10)})
    judge_hours(table, DriftSettings(), NOW + HOUR + LATE)
    assert table.usual() == {}


def test_what_is_old_goes(table: DriftTable) -> None:
    midnight = NOW // 86_400 * 86_400
    gone = Place("gone", "/")
    table.add({(midnight - KEPT - HOUR, gone): one(1), (midnight - KEPT, M): one(1)})
    drift = FoundDrift(*gone, "refusals", 5, None, {})

    def judge(rows: HourRows) -> None:
        rows.keep(gone, {})
        rows.begins(drift)

    table.judge(midnight - HOUR, judge)
    table.judge(midnight, lambda rows: None)
    assert table.hours(0, NOW, gone) == {}
    assert [*table.hours(0, NOW, M)] == [midnight - KEPT]
    assert table.usual() == {}
    assert [one.until for one in table.found()] == [midnight]
