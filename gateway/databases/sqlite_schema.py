"""The ledger's tables in SQLite, and the way to them from every earlier version."""

from __future__ import annotations

from gateway.databases.tables import (
    COUNTS,
    DAY,
    HALF,
    HAPPENED,
    HOUR,
    REASON,
    REFUSED,
    SUM_KEYS,
    SUMMED,
    TOKENS,
)

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
_FROM_1 = "ALTER TABLE requests ADD COLUMN error TEXT;"
_FROM_2 = (
    "ALTER TABLE requests ADD COLUMN cache_write_tokens INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE requests ADD COLUMN cache_write_1h_tokens INTEGER NOT NULL DEFAULT 0;"
)
_FROM_4 = (
    "ALTER TABLE requests ADD COLUMN user_agent TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE spendings ADD COLUMN user_agent TEXT NOT NULL DEFAULT '';"
)
_FROM_6 = "".join(
    f"ALTER TABLE {table} ADD COLUMN unit TEXT NOT NULL DEFAULT '';"
    f"ALTER TABLE {table} ADD COLUMN units REAL NOT NULL DEFAULT 0;"
    for table in ("requests", "spendings")
)
_TYPES = {"real": "REAL", "text": "TEXT NOT NULL DEFAULT ''", "integer": "INTEGER NOT NULL DEFAULT 0"}
_FROM_7 = (
    "".join(
        f"ALTER TABLE requests ADD COLUMN {name} {_TYPES['integer' if kind == 'boolean' else kind]};"
        for name, kind in HAPPENED.items()
        if name != "assignee"
    )
    + "CREATE TABLE IF NOT EXISTS salts (tenant TEXT PRIMARY KEY, salt TEXT NOT NULL);"
)
_FROM_8 = (
    f"ALTER TABLE requests ADD COLUMN assignee {_TYPES['text']};"
    "CREATE INDEX requests_by_experiment ON requests (experiment, created) WHERE experiment <> '';"
)
_SUM_TABLE = f"""
CREATE TABLE IF NOT EXISTS {{name}} (
    start INTEGER NOT NULL,
    {", ".join(f"{name} TEXT NOT NULL" for name in SUM_KEYS)},
    {", ".join(f"{name} INTEGER NOT NULL" for name in SUMMED)},
    PRIMARY KEY (start, {", ".join(SUM_KEYS)})
) WITHOUT ROWID;
"""
_ADDED = ", ".join(f"{name} = {name} + excluded.{name}" for name in SUMMED)
_COSTS = f"cost_nanodollars >> {HALF}, cost_nanodollars & {2**HALF - 1}"
_HOUR = f"CAST(created / {HOUR} AS INTEGER) * {HOUR}"
_HOURS = (
    _SUM_TABLE.format(name="hours")
    + f"""
INSERT INTO hours SELECT {_HOUR}, tenant, key_id, coalesce(answered_model, model), coalesce(backend, ''), user_agent,
    'answer', {REASON.format(error="error")}, 1, status >= 400, coalesce({REFUSED.format(error="error")}, 0),
    {", ".join(TOKENS)}, {_COSTS} FROM requests WHERE true ON CONFLICT DO UPDATE SET {_ADDED};
INSERT INTO hours SELECT {_HOUR}, tenant, key_id, model, backend, user_agent, purpose, '', 0, 0, 0,
    {", ".join(TOKENS)}, {_COSTS} FROM spendings WHERE true ON CONFLICT DO UPDATE SET {_ADDED};
"""
)
_FROM_5 = """
DROP TRIGGER IF EXISTS hours_of_requests;
DROP TRIGGER IF EXISTS hours_of_spendings;
ALTER TABLE hours RENAME COLUMN hour TO start;
"""
"""Version 5 added each row to ``hours`` by a trigger."""
_DAYS = (
    _SUM_TABLE.format(name="days")
    + f"""
INSERT INTO days SELECT start - start % {DAY}, {", ".join((*SUM_KEYS, *SUMMED))} FROM hours WHERE true
    ON CONFLICT DO UPDATE SET {_ADDED};
"""
)
MONTHS = f"""
CREATE TABLE IF NOT EXISTS months (
    created REAL NOT NULL,
    tenant TEXT NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    purpose TEXT NOT NULL,
    reason TEXT NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in (*COUNTS, *TOKENS, "cost_nanodollars"))}
);
"""
"""``created`` is when the month begins. One that holds more than 63 bits has several rows."""
_INDEXES = """
DROP INDEX IF EXISTS requests_by_time;
CREATE INDEX requests_by_time ON requests (created);
CREATE INDEX IF NOT EXISTS requests_by_tenant ON requests (tenant, created);
"""
_TO_SUMS = _FROM_4 + _HOURS + _DAYS + MONTHS + _INDEXES + _FROM_6 + _FROM_7 + _FROM_8
TO_THIS = {
    0: _SCHEMA + _SPENDINGS + _TO_SUMS,
    1: _FROM_1 + _FROM_2 + _SPENDINGS + _TO_SUMS,
    2: _FROM_2 + _SPENDINGS + _TO_SUMS,
    3: _SPENDINGS + _TO_SUMS,
    4: _TO_SUMS,
    5: _FROM_5 + _DAYS + MONTHS + _INDEXES + _FROM_6 + _FROM_7 + _FROM_8,
    6: _FROM_6 + _FROM_7 + _FROM_8,
    7: _FROM_7 + _FROM_8,
    8: _FROM_8,
}
"""The migrations from each version to this one."""
