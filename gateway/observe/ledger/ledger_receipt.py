"""A request's receipt as far as the ledger has it, for those whose own is gone."""

from __future__ import annotations

from typing import Any

from gateway.databases.database import Database, Found
from gateway.databases.tables import HAPPENED
from gateway.metering.price import NANO

_MEASURED = ("prompt_tokens", "cached_tokens", "reasoning_tokens")


def ledger_receipt(database: Database, tenant: str, request_id: str) -> dict[str, Any] | None:
    """None where the tenant has no such request. Models, tokens, cost, times and how it ended, not what stages decided.

    Raises ``DatabaseError``.
    """
    if not database.exists():
        return None
    given = {"request_id": request_id, "tenant": tenant}
    where = "WHERE request_id = :request_id AND tenant = :tenant"
    with database.reading() as reader:
        if "spendings" not in reader.tables() or not reader.columns("requests") >= HAPPENED.keys():
            return None  # of an earlier version, which whoever writes next brings up to date
        found = reader.rows(f"SELECT * FROM requests {where}", given)
        others = reader.rows(f"SELECT * FROM spendings {where} ORDER BY number", given) if found else []
    return _rendered(found[0], others) if found else None


def _rendered(row: Found, others: list[Found]) -> dict[str, Any]:
    measured: dict[str, Any] = {name: row[name] for name in _MEASURED}
    measured |= {"completion_tokens": row["answer_tokens"], "error": row["error"]}
    measured |= {name: row[name] for name in ("first_token", "inter_token", "score") if row[name] is not None}
    measured |= {name: row[name] for name in ("finish_reason", "end_user") if row[name]}
    if row["model_refused"]:
        measured["refused"] = True
    if row["tags"]:
        measured["tags"] = row["tags"].strip(",").split(",")
    stages: dict[str, Any] = {
        "route": {
            "asked": row["model"],
            "model": row["answered_model"],
            "backend": row["backend"],
            "target": row["target_model"],
            "attempts": row["attempts"],
        },
        "meter": measured,
        "quota": {
            "used_tokens": row["prompt_tokens"] + row["completion_tokens"],
            "cost_usd": (row["cost_nanodollars"] + sum(one["cost_nanodollars"] for one in others)) / NANO,
            "estimated": bool(row["estimated"]),
            "spent": [_spent("answer", row)] * bool(row["cost_nanodollars"] or row["prompt_tokens"])
            + [_spent(one["purpose"], one) for one in others],
        },
        "trace": {"key": row["key_id"], "status": row["status"], "seconds": row["seconds"]},
    }
    if row["experiment"]:
        stages["experiment"] = {"name": row["experiment"], "arm": row["arm"]}
    return {
        "id": row["request_id"],
        "object": "tollgate.receipt",
        "created": round(row["created"], 3),
        "source": "ledger",
        "stages": stages,
    }


def _spent(purpose: str, row: Found) -> dict[str, Any]:
    return {
        "purpose": purpose,
        "backend": row["backend"],
        "target": row["target_model"],
        "prompt_tokens": row["prompt_tokens"],
        "completion_tokens": row["completion_tokens"],
        "cost_usd": row["cost_nanodollars"] / NANO,
        "estimated": bool(row["estimated"]),
    }
