"""The ledger's tables, and the way to them from every earlier version."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

VERSION = 5

_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
    request_id TEXT PRIMARY KEY,
    created REAL NOT NULL,
    tenant TEXT NOT NULL,
    key_id TEXT NOT NULL,
    tier TEXT NOT NULL,
    model TEXT NOT NULL,
    answered_model TEXT,
    backend TEXT,
    target_model TEXT,
    status INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    cost_nanodollars INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    seconds REAL NOT NULL,
    attempts INTEGER NOT NULL,
    error TEXT,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    cache_write_1h_tokens INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS requests_by_time ON requests (created);
CREATE INDEX IF NOT EXISTS requests_by_tenant ON requests (tenant, created);
"""
_SPENDINGS = """
CREATE TABLE IF NOT EXISTS spendings (
    request_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    created REAL NOT NULL,
    tenant TEXT NOT NULL,
    key_id TEXT NOT NULL,
    tier TEXT NOT NULL,
    purpose TEXT NOT NULL,
    model TEXT NOT NULL,
    backend TEXT NOT NULL,
    target_model TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    cost_nanodollars INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    cache_write_1h_tokens INTEGER NOT NULL,
    PRIMARY KEY (request_id, number)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS spendings_by_time ON spendings (created);
CREATE INDEX IF NOT EXISTS spendings_by_tenant ON spendings (tenant, created);
CREATE VIEW IF NOT EXISTS spent AS
    SELECT request_id, created, tenant, key_id, tier, 'answer' AS purpose, coalesce(answered_model, model) AS model,
        backend, target_model, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost_nanodollars,
        estimated, cache_write_tokens, cache_write_1h_tokens
    FROM requests
    UNION ALL
    SELECT request_id, created, tenant, key_id, tier, purpose, model,
        backend, target_model, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost_nanodollars,
        estimated, cache_write_tokens, cache_write_1h_tokens
    FROM spendings;
"""
"""A request's own row has the usage of its answer, ``spendings`` all other charges (a cascade's discarded steps,
judges, shadow copies). The view ``spent`` has every charge once, to be summed."""
_FROM_1 = "ALTER TABLE requests ADD COLUMN error TEXT;"
_FROM_2 = (
    "ALTER TABLE requests ADD COLUMN cache_write_tokens INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE requests ADD COLUMN cache_write_1h_tokens INTEGER NOT NULL DEFAULT 0;"
)
_FROM_4 = (
    "ALTER TABLE requests ADD COLUMN user_agent TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE spendings ADD COLUMN user_agent TEXT NOT NULL DEFAULT '';"
)
REFUSED = "({error} IS NOT NULL AND attempts = 0 AND status <> 499 AND status <> 500 AND {error} NOT LIKE 'upstream%')"
"""No model was asked: as ``gateway.observe.outcome.is_refusal`` has it."""
REASON = "coalesce({error}, iif(status < 400, 'ok', status))"
_HALF = 32
"""Bits. A sum of nano-dollars in two halves never exceeds SQLite's integers."""
_TOKEN_SUMS = (
    *("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens", "reasoning_tokens"),
)
_COUNTED = ("requests", "errors", "refused", *_TOKEN_SUMS, "cost_high", "cost_low")
_HOUR_KEYS = ("hour", "tenant", "key_id", "model", "backend", "user_agent", "purpose", "reason")
_COSTS = f"cost_nanodollars >> {_HALF}, cost_nanodollars & {2**_HALF - 1}"
_OF_REQUESTS = (
    "CAST(created / 3600 AS INTEGER) * 3600, tenant, key_id, coalesce(answered_model, model), coalesce(backend, ''), "
    f"user_agent, 'answer', {REASON.format(error='error')}, 1, status >= 400, "
    f"coalesce({REFUSED.format(error='error')}, 0), {', '.join(_TOKEN_SUMS)}, {_COSTS}"
)
_OF_SPENDINGS = (
    "CAST(created / 3600 AS INTEGER) * 3600, tenant, key_id, model, backend, user_agent, purpose, '', 0, 0, 0, "
    f"{', '.join(_TOKEN_SUMS)}, {_COSTS}"
)
_ADDED = ", ".join(f"{name} = {name} + excluded.{name}" for name in _COUNTED)


_READ = (
    *("created", "tenant", "key_id", "model", "backend", "user_agent", *_TOKEN_SUMS, "cost_nanodollars"),
)


def _hours_of(table: str, columns: tuple[str, ...], values: str) -> str:
    """Enters the rows that the table has, and makes a trigger that enters each row that it gets."""
    new = ", ".join(f"new.{name} AS {name}" for name in columns)
    into, end = f"INSERT INTO hours SELECT {values} FROM", f"WHERE true ON CONFLICT DO UPDATE SET {_ADDED};"
    return (
        f"{into} {table} {end}\n"
        f"CREATE TRIGGER IF NOT EXISTS hours_of_{table} AFTER INSERT ON {table} "
        f"BEGIN {into} (SELECT {new}) {end} END;\n"
    )


_HOURS = (
    f"""
CREATE TABLE IF NOT EXISTS hours (
    hour INTEGER NOT NULL,
    {", ".join(f"{name} TEXT NOT NULL" for name in _HOUR_KEYS[1:])},
    {", ".join(f"{name} INTEGER NOT NULL" for name in _COUNTED)},
    PRIMARY KEY ({", ".join(_HOUR_KEYS)})
) WITHOUT ROWID;
"""
    + _hours_of("requests", (*_READ, "answered_model", "status", "error", "attempts"), _OF_REQUESTS)
    + _hours_of("spendings", (*_READ, "purpose"), _OF_SPENDINGS)
)
"""``hours`` has the sums of all rows by the hour in which their requests came. SQLite adds each row as it is inserted,
in the same transaction: what is written is in both or in neither, and a row that is repeated in none twice."""
TO_THIS = {
    0: _SCHEMA + _SPENDINGS + _FROM_4 + _HOURS,
    1: _FROM_1 + _FROM_2 + _SPENDINGS + _FROM_4 + _HOURS,
    2: _FROM_2 + _SPENDINGS + _FROM_4 + _HOURS,
    3: _SPENDINGS + _FROM_4 + _HOURS,
    4: _FROM_4 + _HOURS,
}
"""The migrations from each version to this one."""


def statements(script: str) -> Iterator[str]:
    """The statements of a script, whose triggers hold semicolons themselves."""
    statement = ""
    for part in script.split(";"):
        statement += part + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
