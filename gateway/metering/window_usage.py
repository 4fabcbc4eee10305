"""What a caller has used in a day or a month, for limits."""

from __future__ import annotations

from typing import Literal, NamedTuple


class WindowUsage(NamedTuple):
    """Usage of a caller in a window, as recorded elsewhere."""

    tenant: str
    key_id: str
    tier: str
    window: Literal["day", "month"]
    tokens: int
    nanodollars: int
