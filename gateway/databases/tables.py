"""The ledger's tables in the terms of both databases: the columns of its rows, and the sums that are kept of them.

``requests`` has a row for each request, with the usage of its answer; ``spendings`` all other charges (a cascade's
discarded steps, judges, shadow copies); the view ``spent`` every charge once. ``hours`` and ``days`` have the sums of
both by when their requests came, ``months`` those of months whose rows are gone
(``gateway.observe.ledger.usage_rows``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from gateway.databases.database import Found, Row

Kind = Literal["text", "integer", "real", "boolean"]

_USED: dict[str, Kind] = {
    "prompt_tokens": "integer",
    "cached_tokens": "integer",
    "completion_tokens": "integer",
    "reasoning_tokens": "integer",
    "cost_nanodollars": "integer",
    "estimated": "boolean",
}
_USED_SINCE: dict[str, Kind] = {
    "cache_write_tokens": "integer",
    "cache_write_1h_tokens": "integer",
    "user_agent": "text",
    "unit": "text",
    "units": "real",
}
"""Columns that later versions added. ``units`` are what is not counted in tokens, such as seconds, as ``unit`` says."""
HAPPENED: dict[str, Kind] = {
    "first_token": "real",
    "inter_token": "real",
    "finish_reason": "text",
    "model_refused": "boolean",
    "answer_tokens": "integer",
    "end_user": "text",
    "tags": "text",
    "experiment": "text",
    "arm": "text",
    "score": "real",
    "assignee": "text",
}
"""Columns of requests since version 8, the last since 9.

``first_token`` is seconds from its arrival, ``inter_token`` the mean of those between tokens; ``answer_tokens`` what
its caller was told of the answer, also where it came out of a cache; ``model_refused``: the model said no, or its
provider's filter; ``end_user`` is a hash (``gateway.observe.ledger.end_users``); ``tags`` stand between commas.
``score`` comes later, from whoever judges the answer. ``assignee`` is a hash of who keeps its arm of ``experiment``.
"""
REQUESTS: dict[str, Kind] = {
    "request_id": "text",
    "created": "real",
    "tenant": "text",
    "key_id": "text",
    "tier": "text",
    "model": "text",
    "answered_model": "text",
    "backend": "text",
    "target_model": "text",
    "status": "integer",
    "stream": "boolean",
    **_USED,
    "seconds": "real",
    "attempts": "integer",
    "error": "text",
    **_USED_SINCE,
    **HAPPENED,
}
"""In the order of a row."""
SPENDINGS: dict[str, Kind] = {
    "request_id": "text",
    "number": "integer",
    "created": "real",
    "tenant": "text",
    "key_id": "text",
    "tier": "text",
    "purpose": "text",
    "model": "text",
    "backend": "text",
    "target_model": "text",
    **_USED,
    **_USED_SINCE,
}
TOKENS = ("prompt_tokens", "cached_tokens", "cache_write_tokens", "completion_tokens", "reasoning_tokens")
COUNTS = ("requests", "errors", "refused")
HALF = 32
"""Bits. A sum of nano-dollars in two halves never exceeds 63 bits, of which SQLite's integers have no more."""
SUM_KEYS = ("tenant", "key_id", "model", "backend", "user_agent", "purpose", "reason")
SUMMED = (*COUNTS, *TOKENS, "cost_high", "cost_low")
"""The columns of ``hours`` and ``days`` are ``start``, when the hour or day begins, these keys, and these sums."""
HOUR, DAY = 3600, 86_400

REFUSED = "({error} IS NOT NULL AND attempts = 0 AND status <> 499 AND status <> 500 AND {error} NOT LIKE 'upstream%')"
"""No model was asked: as ``gateway.observe.outcome.is_refusal`` has it."""
REASON = "coalesce({error}, CASE WHEN status < 400 THEN 'ok' ELSE CAST(status AS TEXT) END)"

_REQUEST = {name: number for number, name in enumerate(REQUESTS)}
_SPENDING = {name: number for number, name in enumerate(SPENDINGS)}
_Sums = dict[tuple[str | int, ...], list[int]]


def exact_sum(name: str, what: str = "") -> str:
    """An expression for the sum of ``what`` (the column ``name``) in columns that ``exact`` puts together."""
    what = what or name
    return f"sum({what} >> {HALF}) AS {name}_high, sum({what} & {2**HALF - 1}) AS {name}_low"


def exact(row: Found, name: str) -> int:
    """What was summed up by ``exact_sum``, which is taken out of ``row``."""
    return int(row.pop(f"{name}_high") << HALF) + int(row.pop(f"{name}_low"))


def sums_of(requests: Iterable[Row], spendings: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Rows of ``hours`` and of ``days`` to be added, in the order of their keys: whoever adds several takes locks in
    the same order as everybody else."""
    hours: _Sums = {}
    for row in requests:
        _add(hours, *_of_request(row))
    for row in spendings:
        _add(hours, *_of_spending(row))
    days: _Sums = {}
    for (hour, *keys), sums in hours.items():
        _add(days, (int(hour) // DAY * DAY, *keys), sums)
    return [(*key, *hours[key]) for key in sorted(hours)], [(*key, *days[key]) for key in sorted(days)]


def _add(sums: _Sums, key: tuple[str | int, ...], amounts: Sequence[int]) -> None:
    before = sums.get(key)
    sums[key] = (
        [*amounts] if before is None else [one + more for one, more in zip(before, amounts, strict=True)]
    )


def _of_request(row: Row) -> tuple[tuple[str | int, ...], list[int]]:
    column = _REQUEST
    error, status = row[column["error"]], int(row[column["status"]] or 0)
    refused = (
        error is not None
        and not row[column["attempts"]]
        and status not in (499, 500)
        and not str(error).startswith("upstream")
    )
    model = row[column["answered_model"]]
    key = (
        _hour(row[column["created"]]),
        str(row[column["tenant"]]),
        str(row[column["key_id"]]),
        str(row[column["model"]] if model is None else model),
        str(row[column["backend"]] or ""),
        str(row[column["user_agent"]]),
        "answer",
        str(error) if error is not None else "ok" if status < 400 else str(status),
    )
    return key, [1, int(status >= 400), int(refused), *_amounts(row, column)]


def _of_spending(row: Row) -> tuple[tuple[str | int, ...], list[int]]:
    column = _SPENDING
    names = ("tenant", "key_id", "model", "backend", "user_agent", "purpose")
    texts = [str(row[column[name]]) for name in names]
    return (_hour(row[column["created"]]), *texts, ""), [0, 0, 0, *_amounts(row, column)]


def _hour(created: str | int | float | None) -> int:
    return int(float(created or 0) // HOUR) * HOUR


def _amounts(row: Row, column: dict[str, int]) -> list[int]:
    cost = int(row[column["cost_nanodollars"]] or 0)
    return [*(int(row[column[name]] or 0) for name in TOKENS), cost >> HALF, cost & (2**HALF - 1)]
