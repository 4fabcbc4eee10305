"""What a caller has used in a day or a month."""

from __future__ import annotations

from typing import Literal, NamedTuple


class WindowUsage(NamedTuple):
    """What a caller has used and paid in a window by now, as someone else remembers it."""

    tenant: str
    key_id: str
    tier: str
    window: Literal["day", "month"]
    tokens: int
    nanodollars: int
