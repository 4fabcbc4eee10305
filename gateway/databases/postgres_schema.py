"""The ledger's tables in PostgreSQL, in a schema of their own, and the way to them from every earlier version."""

from __future__ import annotations

from gateway.databases.migrations import Migrations
from gateway.databases.tables import COUNTS, HAPPENED, REQUESTS, SPENDINGS, SUM_KEYS, SUMMED, TOKENS, Kind

SCHEMA = "tollgate"

TYPES: dict[Kind, str] = {
    "text": 'TEXT COLLATE "C"',
    "integer": "BIGINT",
    "real": "DOUBLE PRECISION",
    "boolean": "BOOLEAN",
}
"""Text is compared by its bytes: whatever the server's locale is, pages of a search follow one another."""
_NULLABLE = frozenset({"answered_model", "backend", "target_model", "error"})


def _columns(columns: dict[str, Kind], nullable: frozenset[str] = frozenset()) -> str:
    return ",\n    ".join(
        f"{name} {TYPES[kind]}{'' if name in nullable else ' NOT NULL'}" for name, kind in columns.items()
    )


def _at_first(columns: dict[str, Kind]) -> dict[str, Kind]:
    """As version 1 had them: without the columns that later ones added."""
    return {name: kind for name, kind in columns.items() if name not in ("unit", "units", *HAPPENED)}


def _sum_table(name: str) -> str:
    # Sums of tokens have no bound; those of halves of costs do.
    types = {one: "NUMERIC" if one in TOKENS else "BIGINT" for one in SUMMED}
    return f"""
CREATE TABLE {name} (
    start BIGINT NOT NULL,
    {", ".join(f"{key} {TYPES['text']} NOT NULL" for key in SUM_KEYS)},
    {", ".join(f"{one} {kind} NOT NULL" for one, kind in types.items())},
    PRIMARY KEY (start, {", ".join(SUM_KEYS)})
)"""


_CHARGE = """request_id, created, tenant, key_id, tier, {purpose} AS purpose, {model} AS model, backend, target_model,
    prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost_nanodollars, estimated,
    cache_write_tokens, cache_write_1h_tokens"""

_SPENT = f"""
CREATE VIEW spent AS
    SELECT {_CHARGE.format(purpose="'answer'", model="coalesce(answered_model, model)")} FROM requests
    UNION ALL
    SELECT {_CHARGE.format(purpose="purpose", model="model")} FROM spendings
"""
_FIRST = (
    f"CREATE TABLE requests ({_columns(_at_first(REQUESTS), _NULLABLE)}, PRIMARY KEY (request_id))",
    f"CREATE TABLE spendings ({_columns(_at_first(SPENDINGS))}, PRIMARY KEY (request_id, number))",
    _SPENT,
    _sum_table("hours"),
    _sum_table("days"),
    f"""
CREATE TABLE months (
    created DOUBLE PRECISION NOT NULL,
    {", ".join(f"{key} {TYPES['text']} NOT NULL" for key in ("tenant", "key_id", "model", "purpose", "reason"))},
    {", ".join(f"{one} BIGINT NOT NULL" for one in (*COUNTS, *TOKENS, "cost_nanodollars"))}
)""",
    "CREATE INDEX requests_by_time ON requests (created, request_id)",
    "CREATE INDEX requests_by_tenant ON requests (tenant, created, request_id)",
    "CREATE INDEX spendings_by_time ON spendings (created)",
    "CREATE INDEX months_by_time ON months (created)",
)
_UNITS = tuple(
    f"ALTER TABLE {table} ADD COLUMN unit {TYPES['text']} NOT NULL DEFAULT '', "
    "ADD COLUMN units DOUBLE PRECISION NOT NULL DEFAULT 0"
    for table in ("requests", "spendings")
)
_DEFAULTS: dict[Kind, str] = {
    "text": " NOT NULL DEFAULT ''",
    "integer": " NOT NULL DEFAULT 0",
    "real": "",
    "boolean": " NOT NULL DEFAULT false",
}
_HAPPENED = (
    "ALTER TABLE requests "
    + ", ".join(
        f"ADD COLUMN {name} {TYPES[kind]}{_DEFAULTS[kind]}"
        for name, kind in HAPPENED.items()
        if name != "assignee"
    ),
    f"CREATE TABLE salts (tenant {TYPES['text']} PRIMARY KEY, salt {TYPES['text']} NOT NULL)",
)
_ASSIGNEE = (
    f"ALTER TABLE requests ADD COLUMN assignee {TYPES['text']} NOT NULL DEFAULT ''",
    "CREATE INDEX requests_by_experiment ON requests (experiment, created) WHERE experiment <> ''",
)
MIGRATIONS = (_FIRST, _UNITS, _HAPPENED, _ASSIGNEE)
"""The statements that lead from each version to the next, the first from none at all."""
VERSION = len(MIGRATIONS)
LEDGER = Migrations("ledger", MIGRATIONS, snapshot=True)
