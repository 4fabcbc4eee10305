"""The ledger's rows as ``tollgate usage`` groups them, a query for each version of it; and their retention.

Whole months of them are summed up, exactly, in a table of their own, and the rows deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType

from gateway.databases.database import Change, Database, Reader
from gateway.databases.own_tables import changed
from gateway.databases.tables import COUNTS, REASON, REFUSED, TOKENS, exact, exact_sum

KEYS = ("tenant", "key_id", "model", "purpose", "reason")
SUMS = (*TOKENS, "cost_nanodollars")

_TOKENS = "prompt_tokens, cached_tokens, {written} AS cache_write_tokens, completion_tokens, reasoning_tokens"
_REQUESTS = """
SELECT created, tenant, key_id, coalesce(answered_model, model) AS model, coalesce(backend, '') AS backend,
    'answer' AS purpose, {reason} AS reason,
    1 AS requests, CASE WHEN status >= 400 THEN 1 ELSE 0 END AS errors,
    CASE WHEN {refused} THEN 1 ELSE 0 END AS refused, {tokens}, cost_nanodollars{own}
FROM requests WHERE created >= :since
"""
_SPENDINGS = """
UNION ALL
SELECT created, tenant, key_id, model, backend, purpose,
    coalesce((SELECT {reason} FROM requests WHERE requests.request_id = spendings.request_id), purpose) AS reason,
    0 AS requests, 0 AS errors, 0 AS refused, {tokens}, cost_nanodollars{theirs}
FROM spendings WHERE created >= :since
"""
"""All that was paid for beside the answers: a request is counted where its answer is."""
_OF_REQUEST = "SELECT {what} FROM requests WHERE requests.request_id = spendings.request_id"
_MONTHS = """
UNION ALL
SELECT created, tenant, key_id, model, '(rolled up)' AS backend, purpose, reason, requests, errors, refused, {tokens},
    cost_nanodollars{unknown}
FROM months WHERE created >= :since
"""


def usage_rows(reader: Reader, happened: Sequence[str] = ()) -> str:
    """Of requests, spendings and months that are summed up. ``since`` is its parameter, in Unix time.

    ``happened``: texts of requests that are wanted as well, of ``gateway.databases.tables.HAPPENED``.

    Its columns: ``created``, ``tenant``, ``key_id``, ``model``, ``backend``, ``purpose``, ``reason``, and the
    counts and sums of ``months``. Empty where there are no tables yet.
    """
    # A gateway before version 2 of the ledger did not record why requests failed, before 3 not what was put into
    # prompt caches, and before 4 all charges of a request in one row.
    columns, tables = reader.columns("requests"), reader.tables()
    if not columns:
        return ""
    rows = _rows(
        "error" if "error" in columns else "NULL",
        "cache_write_tokens" if "cache_write_tokens" in columns else "0",
        spendings="spendings" in tables,
        happened={name: name if name in columns else "''" for name in happened},
    )
    if "months" in tables:
        unknown = "".join(f", '(rolled up)' AS {name}" for name in happened)
        rows += _MONTHS.format(tokens=_TOKENS.format(written="cache_write_tokens"), unknown=unknown)
    return rows


def _rows(
    error: str, written: str, *, spendings: bool, happened: Mapping[str, str] = MappingProxyType({})
) -> str:
    """``happened``: an expression for each."""
    reason, tokens = REASON.format(error=error), _TOKENS.format(written=written)
    own = "".join(f", {what} AS {name}" for name, what in happened.items())
    rows = _REQUESTS.format(reason=reason, refused=REFUSED.format(error=error), tokens=tokens, own=own)
    theirs = "".join(
        f", coalesce(({_OF_REQUEST.format(what=what)}), '') AS {name}" for name, what in happened.items()
    )
    return rows + _SPENDINGS.format(reason=reason, tokens=tokens, theirs=theirs) if spendings else rows


ROWS = _rows("error", "cache_write_tokens", spendings=True)
"""Of requests and spendings in a ledger of this version."""
_OLDEST = """
SELECT min(created) AS created
FROM (SELECT min(created) AS created FROM requests UNION ALL SELECT min(created) FROM spendings) AS oldest
"""
_LARGEST = 2**62


def roll_up(database: Database, before: float) -> int:
    """Roll up the months of UTC that ended before ``before`` (Unix time). Returns how many requests were in them.

    Each month is one transaction. Raises ``DatabaseError``.
    """
    found = 0
    while (month := changed(database, partial(_next_month, before=before))) is not None:
        found += month
    return found


def _next_month(change: Change, before: float) -> int | None:
    """How many requests were in it; None where there is no more to roll up."""
    (oldest,) = change.rows(_OLDEST, {})
    if oldest["created"] is None:
        return None
    begins, ends = month_of(oldest["created"])
    return _month(change, begins, ends) if ends <= before else None


def month_of(created: float) -> tuple[float, float]:
    """When the month of UTC begins and ends, in Unix time."""
    at = datetime.fromtimestamp(created, UTC)
    begins = datetime(at.year, at.month, 1, tzinfo=UTC)
    ends = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
    return begins.timestamp(), ends.timestamp()


def _month(change: Change, begins: float, ends: float) -> int:
    halves = ", ".join(map(exact_sum, SUMS))
    counts = ", ".join(f"sum({name}) AS {name}" for name in COUNTS)
    keys = ", ".join(KEYS)
    query = f"SELECT {keys}, {counts}, {halves} FROM ({ROWS}) AS found WHERE created < :ends GROUP BY {keys}"
    columns = ("created", *KEYS, *COUNTS, *SUMS)
    insert = f"INSERT INTO months ({', '.join(columns)}) VALUES ({', '.join(f':{name}' for name in columns)})"
    for row in change.rows(query, {"since": begins, "ends": ends}):
        sums = [exact(row, name) for name in SUMS]
        counted = {name: row[name] for name in COUNTS}
        for part in _parts(sums):
            told = {name: row[name] for name in KEYS} | counted | dict(zip(SUMS, part, strict=True))
            change.run(insert, {"created": begins, **told})
            counted = dict.fromkeys(COUNTS, 0)
    change.run("DELETE FROM spendings WHERE created < :ends", {"ends": ends})
    for table in ("hours", "days"):
        change.run(f"DELETE FROM {table} WHERE start < :ends", {"ends": ends})
    return change.run("DELETE FROM requests WHERE created < :ends", {"ends": ends})


def _parts(sums: list[int]) -> Iterator[list[int]]:
    """Sums in parts that 63 bits hold."""
    while True:
        part = [min(one, _LARGEST) for one in sums]
        yield part
        sums = [one - taken for one, taken in zip(sums, part, strict=True)]
        if not any(sums):
            return
