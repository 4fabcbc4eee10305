"""The ledger's rows as ``tollgate usage`` groups them, and as months are summed up: a query for each version of it."""

from __future__ import annotations

from gateway.databases.database import Reader
from gateway.databases.tables import REASON, REFUSED

_TOKENS = "prompt_tokens, cached_tokens, {written} AS cache_write_tokens, completion_tokens, reasoning_tokens"
_REQUESTS = """
SELECT created, tenant, key_id, coalesce(answered_model, model) AS model, coalesce(backend, '') AS backend,
    'answer' AS purpose, {reason} AS reason,
    1 AS requests, CASE WHEN status >= 400 THEN 1 ELSE 0 END AS errors,
    CASE WHEN {refused} THEN 1 ELSE 0 END AS refused, {tokens}, cost_nanodollars
FROM requests WHERE created >= :since
"""
_SPENDINGS = """
UNION ALL
SELECT created, tenant, key_id, model, backend, purpose,
    coalesce((SELECT {reason} FROM requests WHERE requests.request_id = spendings.request_id), purpose) AS reason,
    0 AS requests, 0 AS errors, 0 AS refused, {tokens}, cost_nanodollars
FROM spendings WHERE created >= :since
"""
"""All that was paid for beside the answers: a request is counted where its answer is."""
_MONTHS = """
UNION ALL
SELECT created, tenant, key_id, model, '(rolled up)' AS backend, purpose, reason, requests, errors, refused, {tokens},
    cost_nanodollars
FROM months WHERE created >= :since
"""


def usage_rows(reader: Reader) -> str:
    """Of requests, spendings and months that are summed up. ``since`` is its parameter, in Unix time.

    Its columns: ``created``, ``tenant``, ``key_id``, ``model``, ``backend``, ``purpose``, ``reason``, and the
    counts and sums of ``gateway.observe.roll_up``. Empty where there are no tables yet.
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
    )
    return (
        rows + _MONTHS.format(tokens=_TOKENS.format(written="cache_write_tokens"))
        if "months" in tables
        else rows
    )


def _rows(error: str, written: str, *, spendings: bool) -> str:
    reason, refused, tokens = (
        REASON.format(error=error),
        REFUSED.format(error=error),
        _TOKENS.format(written=written),
    )
    rows = _REQUESTS.format(reason=reason, refused=refused, tokens=tokens)
    return rows + _SPENDINGS.format(reason=reason, tokens=tokens) if spendings else rows


ROWS = _rows("error", "cache_write_tokens", spendings=True)
"""Of requests and spendings in a ledger of this version."""
