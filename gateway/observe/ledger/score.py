"""The score of a request, which comes after its row: from its caller, or from who judges answers."""

from __future__ import annotations

from gateway.databases.database import Change, Database
from gateway.databases.own_tables import changed


def write_score(
    database: Database, tenant: str, request_id: str, score: float | None, *, replaces: bool = True
) -> bool:
    """Whether the tenant's request has a row. Raises ``DatabaseError``.

    ``replaces``: a score that it has already; a judge's gives way to its caller's.
    """
    given = {"tenant": tenant, "request_id": request_id, "score": score}
    value = ":score" if replaces else "coalesce(score, :score)"

    def change(one: Change) -> int:
        return one.run(
            f"UPDATE requests SET score = {value} WHERE request_id = :request_id AND tenant = :tenant", given
        )

    return changed(database, change) > 0
