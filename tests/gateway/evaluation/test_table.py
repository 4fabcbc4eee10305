"""Scores and pairs in both databases: what is summed up, which pairs are the worst, what is forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.databases.opening import open_tables
from gateway.evaluation.table import EVALUATIONS, KEPT, TEXTS_KEPT, EvaluationTable, Pair, Scored
from gateway.policy.schema import LedgerSettings
from tests.postgres_server import PostgresServer

NOW = 1_700_006_400.0
"""The beginning of a day."""
SCORED = Scored("acme", "r0", NOW, "s", "m", "up/big", 0.5)
PAIR = Pair(
    "acme", "r0", NOW, "s", "m", "up/big", "small", "up/small", 0, 0.5, 0.5, 10**9, 0, 2.0, 1.0, "q", "a", "b"
)


@pytest.fixture(params=["sqlite", "postgres"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> EvaluationTable:
    config = LedgerSettings()
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        config = LedgerSettings(store=server.url(server.new_database()))
    return EvaluationTable(open_tables(EVALUATIONS, config, tmp_path))


def everything(table: EvaluationTable, hours: int | None = None) -> list[tuple[str, float, int, float]]:
    found = table.scores("s", 0.0, 1e10, hours)
    assert all(one.low <= one.mean <= one.high for one in found)
    return [(one.model, one.start, one.count, one.mean) for one in found]


def test_scores_by_model_and_time(table: EvaluationTable) -> None:
    assert everything(table) == []
    for number, (model, hour, score) in enumerate(
        (("m", 0, 0.5), ("m", 5, 1.0), ("m", 30, 0.25), ("n", 5, 0.0))
    ):
        one = replace(SCORED, request_id=f"r{number}", created=NOW + 3600 * hour, model=model, score=score)
        table.write(one, None)
    table.write(replace(SCORED, request_id="another", series="rubric"), None)
    table.write(replace(SCORED, score=0.75), None)
    assert everything(table) == [("m", NOW, 3, pytest.approx(2 / 3)), ("n", NOW + 18_000, 1, 0.0)]
    assert everything(table, 24) == [("m", NOW, 2, 0.875), ("n", NOW, 1, 0.0), ("m", NOW + 86_400, 1, 0.25)]
    assert len(everything(table, 1)) == 4
    assert [one.count for one in table.scores("s", NOW + 1, NOW + 86_400, None)] == [1, 1]


def test_pairs_and_the_worst_of_them(table: EvaluationTable) -> None:
    said = ((1.0, 0.0, -1), (1.0, 0.75, -1), (0.5, 0.5, 0), (0.5, 1.0, 1), (0.5, 0.5, -1))
    for number, (score, other, preferred) in enumerate(said):
        pair = replace(PAIR, request_id=f"r{number}", score=score, shadow_score=other, preferred=preferred)
        table.write(replace(SCORED, request_id=pair.request_id), pair)
    (one,) = table.pairs("s", 0.0, 1e10)
    assert (one.model, one.shadow, one.count, one.preferred, one.against) == ("m", "small", 5, 1, 3)
    assert (one.score, one.shadow_score) == (pytest.approx(0.7), pytest.approx(0.55))
    assert (one.dollars, one.shadow_dollars, one.seconds, one.shadow_seconds) == (1.0, 0.0, 2.0, 1.0)
    worst = table.worst("s", 0.0, 1e10, 10)
    assert [pair.request_id for pair in worst] == ["r0", "r1", "r4"]
    assert worst[0] == replace(PAIR, score=1.0, shadow_score=0.0, preferred=-1)


def test_texts_are_forgotten_before_scores_are(table: EvaluationTable) -> None:
    table.write(SCORED, PAIR)
    later = replace(SCORED, request_id="r1", created=NOW + TEXTS_KEPT + 1)
    table.write(later, None)
    (pair,) = table.worst("s", 0.0, 1e10, 10) or [None]
    assert pair is None, "neither is worse"
    table.write(replace(SCORED, request_id="r2"), replace(PAIR, request_id="r2", preferred=-1))
    table.write(replace(later, request_id="r3", created=later.created + 86_400), None)
    (kept,) = table.worst("s", 0.0, 1e10, 10)
    assert (kept.question, kept.answer, kept.shadow_answer) == (None, None, None)
    table.write(replace(later, request_id="r4", created=NOW + KEPT + 1), None)
    assert table.worst("s", 0.0, 1e10, 10) == []
    assert {one.start for one in table.scores("s", 0.0, 1e10, 1)} >= {NOW + KEPT - KEPT % 3600}
