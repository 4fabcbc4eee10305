"""What the ledger has of an experiment, summed up over those who keep an arm: figures for intervals, not rows.

Requests that came to no model by our own refusal (limits, a full queue) and those whose client left are part of no
metric: they tell of the caller, not of the arm. Those that a guard refused are part of ``blocked`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.databases.database import Database
from gateway.databases.tables import REFUSED

_TRUE, _FALSE = "(1 = 1)", "(1 = 0)"
"""In SQLite a number, in PostgreSQL a truth."""
_COST = """(cost_nanodollars + coalesce((SELECT sum(cost_nanodollars) FROM spendings
    WHERE spendings.request_id = requests.request_id), 0)) / 1e9"""
_BLOCKED = "coalesce(error, '') = 'content_policy_violation'"
_CUT = "(finish_reason = 'content_filter' AND NOT model_refused = {true})"
_ENDED = f"status <> 499 AND NOT {_BLOCKED}"
VALUES: Mapping[str, tuple[str, str]] = {
    "score": ("score", "score IS NOT NULL"),
    "errors": ("CASE WHEN status >= 500 THEN 1.0 ELSE 0.0 END", _ENDED),
    "refusals": (
        "CASE WHEN model_refused = {true} THEN 1.0 ELSE 0.0 END",
        "(status < 400 OR model_refused = {true})",
    ),
    "blocked": (f"CASE WHEN {_BLOCKED} OR {_CUT} THEN 1.0 ELSE 0.0 END", "status <> 499"),
    "cost": (_COST, _ENDED),
    "ttft": ("first_token", f"first_token IS NOT NULL AND NOT {_BLOCKED}"),
    "length": ("1.0 * answer_tokens", "status < 400"),
}
"""Of each metric its value, and of which requests it is known."""
_UNITS = """
SELECT arm, tenant, assignee, count(*) AS n, {sums}
FROM requests WHERE experiment = :experiment AND experiment <> '' AND created >= :since AND {asked}
GROUP BY arm, tenant, assignee
"""
"""SQLite knows by the second condition that its index has the rows."""
_ARMS = "SELECT arm, count(*) AS units, sum(n) AS requests, {sums} FROM ({units}) AS found GROUP BY arm"


def sums_of(
    database: Database, experiment: str, metrics: Sequence[str], since: float
) -> dict[str, dict[str, Any]]:
    """By arm: ``units``, ``requests``, and of each metric ``<metric>_units``, ``_count``, ``_total``,
    ``_count_squares``, ``_total_squares`` and ``_products``. ``since`` is Unix time. Raises ``DatabaseError``."""
    if not database.exists():
        return {}
    with database.reading() as reader:
        if "assignee" not in reader.columns("requests"):
            return {}  # of an earlier version, which whoever writes next brings up to date
        found = reader.rows(_query(metrics), {"experiment": experiment, "since": since})
    return {str(row["arm"]): row for row in found}


def _query(metrics: Sequence[str]) -> str:
    inner, outer = [], []
    for name in metrics:
        value, known = (text.format(true=_TRUE) for text in VALUES[name])
        inner.append(f"sum(CASE WHEN {known} THEN 1 ELSE 0 END) AS {name}_n")
        inner.append(f"coalesce(sum(CASE WHEN {known} THEN {value} END), 0) AS {name}_x")
        n, x = f"{name}_n", f"{name}_x"
        outer += [
            f"sum(CASE WHEN {n} > 0 THEN 1 ELSE 0 END) AS {name}_units",
            f"CAST(sum({n}) AS DOUBLE PRECISION) AS {name}_count",
            f"CAST(sum({x}) AS DOUBLE PRECISION) AS {name}_total",
            f"CAST(sum(1.0 * {n} * {n}) AS DOUBLE PRECISION) AS {name}_count_squares",
            f"CAST(sum({x} * {x}) AS DOUBLE PRECISION) AS {name}_total_squares",
            f"CAST(sum({x} * {n}) AS DOUBLE PRECISION) AS {name}_products",
        ]
    asked = f"(NOT coalesce({REFUSED.format(error='error')}, {_FALSE}) OR {_BLOCKED})"
    units = _UNITS.format(sums=", ".join(inner), asked=asked)
    return _ARMS.format(sums=", ".join(outer), units=units)
