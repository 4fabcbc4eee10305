"""Scores, and what shadows answered, in the ledger's database. Its methods wait for it, and are called in threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway.databases.database import Change
from gateway.databases.migrations import Migrations
from gateway.databases.own_tables import OwnTables
from gateway.intervals import wilson

EVALUATIONS = Migrations(
    "evaluations",
    (
        (
            """
CREATE TABLE evaluations (
    tenant TEXT NOT NULL,
    request_id TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    hour BIGINT NOT NULL,
    series TEXT NOT NULL,
    model TEXT NOT NULL,
    target TEXT NOT NULL,
    score DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (tenant, request_id)
)""",
            "CREATE INDEX evaluations_by_time ON evaluations (created)",
            """
CREATE TABLE pairs (
    tenant TEXT NOT NULL,
    request_id TEXT NOT NULL,
    created DOUBLE PRECISION NOT NULL,
    series TEXT NOT NULL,
    model TEXT NOT NULL,
    target TEXT NOT NULL,
    shadow TEXT NOT NULL,
    shadow_target TEXT NOT NULL,
    preferred BIGINT NOT NULL,
    score DOUBLE PRECISION NOT NULL,
    shadow_score DOUBLE PRECISION NOT NULL,
    nanodollars BIGINT NOT NULL,
    shadow_nanodollars BIGINT NOT NULL,
    seconds DOUBLE PRECISION NOT NULL,
    shadow_seconds DOUBLE PRECISION NOT NULL,
    question TEXT,
    answer TEXT,
    shadow_answer TEXT,
    PRIMARY KEY (tenant, request_id)
)""",
            "CREATE INDEX pairs_by_time ON pairs (created)",
        ),
    ),
)
KEPT = 400 * 86_400.0
"""Seconds for which scores are kept."""
TEXTS_KEPT = 30 * 86_400.0
_HOUR = 3600
_SWEEP = 3600.0
_MOST_GROUPS = 1000


@dataclass(frozen=True, slots=True)
class Scored:
    """``created`` is when its request came (Unix time), ``score`` from 0 to 1."""

    tenant: str
    request_id: str
    created: float
    series: str
    model: str
    target: str
    """``backend/model``."""
    score: float


@dataclass(frozen=True, slots=True)
class Pair:
    """An answer and a shadow's to the same request. ``preferred``: 1 the shadow's, -1 the answer, 0 neither."""

    tenant: str
    request_id: str
    created: float
    series: str
    model: str
    target: str
    shadow: str
    shadow_target: str
    preferred: int
    score: float
    shadow_score: float
    nanodollars: int
    shadow_nanodollars: int
    seconds: float
    shadow_seconds: float
    question: str | None = None
    answer: str | None = None
    shadow_answer: str | None = None


@dataclass(frozen=True, slots=True)
class ScoreFigures:
    """Of one model's answers from ``start`` on (Unix time), until the next; ``mean`` with its bounds of 95 %."""

    model: str
    start: float
    count: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairFigures:
    """Of a model and its shadow: means. ``preferred`` and ``against`` count pairs by whose answer was better."""

    model: str
    shadow: str
    count: int
    preferred: int
    against: int
    score: float
    shadow_score: float
    dollars: float
    shadow_dollars: float
    seconds: float
    shadow_seconds: float


class EvaluationTable(OwnTables):
    """All methods raise ``DatabaseError``. A request is judged once: what is written again replaces what was there."""

    _swept = 0.0

    def write(self, scored: Scored, pair: Pair | None) -> None:
        def change(one: Change) -> None:
            # Whole numbers are divided alike by both databases.
            _put(one, "evaluations", {**asdict(scored), "hour": int(scored.created // _HOUR)})
            if pair is not None:
                _put(one, "pairs", asdict(pair))
            if scored.created >= self._swept + _SWEEP:
                old = {"before": scored.created - KEPT, "texts": scored.created - TEXTS_KEPT}
                one.run("DELETE FROM evaluations WHERE created < :before", old)
                one.run("DELETE FROM pairs WHERE created < :before", old)
                one.run(
                    "UPDATE pairs SET question = NULL, answer = NULL, shadow_answer = NULL "
                    "WHERE created < :texts AND question IS NOT NULL",
                    old,
                )

        self._change(change)
        self._swept = max(self._swept, scored.created)

    def scores(self, series: str, since: float, until: float, hours: int | None) -> list[ScoreFigures]:
        """A row for each model and, where ``hours`` are given, each interval of so many."""
        if not self.exists:
            return []
        start = f"hour / {hours} * {hours} * {_HOUR}" if hours else f"min(hour) * {_HOUR}"
        query = (
            f"SELECT model, {start} AS start, count(*) AS count, sum(score) AS total FROM evaluations "
            "WHERE series = :series AND created >= :since AND created < :until "
            f"GROUP BY {'model, ' + start if hours else 'model'} ORDER BY 2, 1 LIMIT {_MOST_GROUPS}"
        )
        given: dict[str, Any] = {"series": series, "since": since, "until": until}
        return [_score_figures(row) for row in self._rows(query, given)]

    def pairs(self, series: str, since: float, until: float) -> list[PairFigures]:
        """A row for each model and its shadow."""
        if not self.exists:
            return []
        query = (
            "SELECT model, shadow, count(*) AS count, "
            "sum(CASE WHEN preferred > 0 THEN 1 ELSE 0 END) AS preferred, "
            "sum(CASE WHEN preferred < 0 THEN 1 ELSE 0 END) AS against, "
            "avg(score) AS score, avg(shadow_score) AS shadow_score, "
            "avg(CAST(nanodollars AS DOUBLE PRECISION)) / 1e9 AS dollars, "
            "avg(CAST(shadow_nanodollars AS DOUBLE PRECISION)) / 1e9 AS shadow_dollars, "
            "avg(seconds) AS seconds, avg(shadow_seconds) AS shadow_seconds FROM pairs "
            "WHERE series = :series AND created >= :since AND created < :until GROUP BY 1, 2 ORDER BY 3 DESC "
            f"LIMIT {_MOST_GROUPS}"
        )
        given = {"series": series, "since": since, "until": until}
        return [_pair_figures(row) for row in self._rows(query, given)]

    def worst(self, series: str, since: float, until: float, most: int) -> list[Pair]:
        """Those whose shadow's answer is the furthest below the other one, the latest of equal ones first."""
        if not self.exists:
            return []
        query = (
            "SELECT * FROM pairs WHERE series = :series AND created >= :since AND created < :until "
            "AND (shadow_score < score OR preferred < 0) "
            "ORDER BY shadow_score - score, preferred, created DESC LIMIT :most"
        )
        given: dict[str, Any] = {"series": series, "since": since, "until": until, "most": most}
        return [Pair(**row) for row in self._rows(query, given)]


def _put(one: Change, table: str, row: Mapping[str, Any]) -> None:
    names: Sequence[str] = [*row]
    values = ", ".join(f":{name}" for name in names)
    updates = ", ".join(f"{name} = excluded.{name}" for name in names[2:])
    one.run(
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values}) "
        f"ON CONFLICT (tenant, request_id) DO UPDATE SET {updates}",
        dict(row),
    )


def _score_figures(row: Mapping[str, Any]) -> ScoreFigures:
    count = int(row["count"])
    mean = min(1.0, max(0.0, float(row["total"]) / count))
    return ScoreFigures(str(row["model"]), float(row["start"]), count, mean, *wilson(mean, count))


def _pair_figures(row: Mapping[str, Any]) -> PairFigures:
    named = ("score", "shadow_score", "dollars", "shadow_dollars", "seconds", "shadow_seconds")
    figures: dict[str, Any] = {name: float(row[name]) for name in named}
    counts: dict[str, Any] = {name: int(row[name]) for name in ("count", "preferred", "against")}
    return PairFigures(str(row["model"]), str(row["shadow"]), **counts, **figures)
