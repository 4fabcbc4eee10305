"""Feedback in both databases, and its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.databases.opening import open_tables
from gateway.feedback.feedback import Feedback, figures
from gateway.feedback.table import FEEDBACK, KEPT, FeedbackTable
from gateway.policy.schema import LedgerSettings
from tests.postgres_server import PostgresServer


@pytest.fixture(params=["sqlite", "postgres"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> FeedbackTable:
    ledger = LedgerSettings()
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        ledger = LedgerSettings(store=server.url(server.new_database()))
    return FeedbackTable(open_tables(FEEDBACK, ledger, tmp_path))


def one(
    request_id: str,
    score: float | None = 1.0,
    *,
    created: float = 1e9,
    tenant: str = "acme",
    model: str = "m",
    label: str | None = None,
) -> Feedback:
    return Feedback(tenant, request_id, created, "key", model, "b", score, label, None)


def test_a_table_that_was_never_written_is_empty(table: FeedbackTable) -> None:
    assert (table.figures(("model",), 0.0), table.comments(0.0, 10)) == ([], [])


def test_the_last_opinion_of_a_request_counts_and_tenants_have_their_own(table: FeedbackTable) -> None:
    table.write(one("r", 0.0))
    table.write(one("r", 0.5, created=1e9 + 1, label="better"))
    table.write(one("r", 1.0, tenant="other"))
    assert table.find("acme", "r") == one("r", 0.5, created=1e9 + 1, label="better")
    assert table.find("other", "r") == one("r", 1.0, tenant="other")
    assert table.find("nobody", "r") is None


def test_figures_by_group_time_and_model(table: FeedbackTable) -> None:
    for number, score in enumerate([1.0, 1.0, 0.0, None]):
        table.write(one(f"r{number}", score, label="bad" if score == 0.0 else None))
    table.write(one("s", 0.0, model="n", created=1e9 - 100))
    by_model = table.figures(("model",), 0.0)
    assert [(row.group, row.count, row.scored) for row in by_model] == [(("m",), 4, 3), (("n",), 1, 1)]
    assert by_model[0].mean == pytest.approx(2 / 3)
    assert [row.group for row in table.figures(("model",), 1e9 - 50)] == [("m",)]
    assert [row.group for row in table.figures(("model",), 0.0, 1e9 - 50)] == [("n",)]
    assert [row.group for row in table.figures(("label", "model"), 0.0, equal=[("model", "m")])] == [
        ("", "m"),
        ("bad", "m"),
    ]
    (all_of_it,) = table.figures((), 0.0)
    assert (all_of_it.group, all_of_it.count) == ((), 5)
    assert [row.request_id for row in table.comments(0.0, 10)] == ["r2"]


def test_what_is_old_is_forgotten(table: FeedbackTable) -> None:
    table.write(one("old", created=1e9 - KEPT - 1))
    table.write(one("new"))
    assert table.find("acme", "old") is None
    assert table.find("acme", "new") is not None


def test_where_nobody_gave_a_score_there_is_no_mean() -> None:
    assert figures(("m",), 2, 0, 0.0).mean is None
    found = figures(("m",), 3, 2, 1.0)
    assert found.low is not None and found.high is not None and found.low < 0.5 < found.high
