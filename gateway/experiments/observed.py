"""What a request that has ended says of the target that its arm stands for."""

from __future__ import annotations

from gateway.experiments.assignment import NEW
from gateway.experiments.evidence import Observed
from gateway.observe.ended import Ended
from gateway.observe.outcome import UPSTREAM
from gateway.types import Arm


def observed(arm: Arm, ended: Ended) -> Observed | None:
    """None where it says nothing: it was not sent, or, for want of a place at the new target, to another one.

    Of several attempts the first is looked at: retries and fallbacks hide from callers what is to be seen here.
    """
    route = ended.noted.get("route", {})
    planned = route.get("candidates") or [None]
    if arm.name == NEW and route.get("why") == "spill_over":
        return None
    attempts = ended.noted.get("fallback", {}).get("attempts", ())
    if not attempts:
        if ended.error not in UPSTREAM:
            return None
        failed = True  # the breakers of all targets are open
    else:
        first = attempts[0]
        if not first.get("admitted", True):
            return None
        # Another than the first one planned was asked where that one's breaker is open.
        failed = "fault" in first or f"{first['backend']}/{first['model']}" != planned[0]
    first_token = ended.first_token
    if first_token is None and ended.code == "client_left":
        first_token = ended.seconds  # it took longer than that
    nanodollars = ended.bill.nanodollars if ended.is_settled else 0
    return Observed(failed, first_token, nanodollars, refused=ended.model_refused and not failed)
