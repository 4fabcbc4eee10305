"""End users who cost far more than others of their tenant, by a z-score that they cannot move themselves.

Costs are spread over orders of magnitude, so that their logarithms are compared. With median m and median absolute
deviation d of these, z = 0.6745 (ln cost - m) / d (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993): of
logarithms that are normal it is the usual z-score, and nearly half of the users can be outliers before it misses them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from gateway.databases.database import Database
from gateway.databases.tables import HAPPENED, exact, exact_sum

FEWEST = 20
"""Users of a tenant, of whom it can be said what is usual."""
LEAST_Z = 5.0
LEAST_SPREAD = 0.2
"""Of the logarithms: where all cost nearly the same, twice as much is no outlier yet."""
MOST = 20
"""Told of a tenant at once: the dearest."""
_NORMAL = 0.6745
_QUERY = f"""
SELECT tenant, end_user, {exact_sum("cost", "cost_nanodollars")} FROM requests
WHERE created >= :since AND created < :until AND end_user <> '' AND cost_nanodollars > 0 GROUP BY tenant, end_user
"""


class Outlier(NamedTuple):
    tenant: str
    user: str
    """Its hash, as in the ledger."""
    nanodollars: int
    usual: int
    """Nano-dollars: the median of the tenant's users."""
    users: int
    z: float


def find_outliers(database: Database, since: float, until: float) -> list[Outlier]:
    """By what requests of these times (Unix time) cost. Raises ``DatabaseError``."""
    if not database.exists():
        return []
    costs: dict[str, dict[str, int]] = {}
    with database.reading() as reader:
        if not reader.columns("requests") >= HAPPENED.keys():
            return []
        for row in reader.rows(_QUERY, {"since": since, "until": until}):
            costs.setdefault(row["tenant"], {})[row["end_user"]] = exact(row, "cost")
    return [one for tenant, users in sorted(costs.items()) for one in _of(tenant, users)]


def _of(tenant: str, costs: Mapping[str, int]) -> Iterator[Outlier]:
    if len(costs) < FEWEST:
        return
    centre, spread = _centre_and_spread([math.log(cost) for cost in costs.values()])
    usual = round(median(costs.values()))
    for user in sorted(costs, key=lambda name: (-costs[name], name))[:MOST]:
        z = _NORMAL * (math.log(costs[user]) - centre) / spread
        if z >= LEAST_Z:
            yield Outlier(tenant, user, costs[user], usual, len(costs), round(z, 2))


def _centre_and_spread(values: Sequence[float]) -> tuple[float, float]:
    centre = median(values)
    return centre, max(median(abs(value - centre) for value in values), LEAST_SPREAD)
