"""How a request ended, told from what ended it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from gateway.errors import GatewayError


class Outcome(NamedTuple):
    status: int
    """An HTTP status; 499, as nginx has it, for a client that left before the end."""
    code: str | None


CUT = "cut"
"""With this message work is cancelled whose answer a guard has cut."""


def outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, GatewayError):
        return Outcome(error.status, error.code)
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return Outcome(499, CUT if CUT in error.args else "client_left")
    return Outcome(500, "internal_error")
