"""Holds what a request may use against its caller's limits, and settles with all that it did use, exactly once."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Protocol

from gateway.errors import GatewayError
from gateway.metering.price import NANO
from gateway.metering.tally import Bill, Charge, bill_of
from gateway.observe.outcome import outcome_of, reason_of
from gateway.quota.quotas import Quotas, tokens_of
from gateway.types import Call, Chunks, Handler, Json, Stage

log = logging.getLogger(__name__)


class Ledger(Protocol):
    def record(self, call: Call, bill: Bill, status: int, error: str | None = None) -> object: ...


def quota(quotas: Quotas, ledger: Ledger | None = None) -> Stage:
    """``ledger`` is told of every request, once it has ended or was refused."""

    def enter(call: Call, bill: Bill, ended: BaseException | None) -> None:
        if ledger is None:
            return
        status, error = (200, None) if ended is None else (outcome_of(ended).status, reason_of(ended))
        try:
            ledger.record(call, bill, status, error)
        except Exception:
            log.exception("%s could not be entered in the ledger", call.request_id)

    def stage(following: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            try:
                reservation = await quotas.reserve(call)
            except GatewayError as error:
                enter(call, Bill(), error)
                raise
            demand = call.demand
            ended: BaseException | None = None
            try:
                async with aclosing(following(call)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except BaseException as error:
                ended = error
                raise
            finally:
                bill = bill_of(call.policy, call.spent)
                if reservation is not None:
                    quotas.settle(reservation, tokens=bill.tokens, nanodollars=bill.nanodollars)
                if ended is None and not bill.estimated and (answer := bill.answer) is not None:
                    quotas.estimator.learn(call, answer.spending.usage)
                facts: dict[str, Json] = {
                    "reserved_tokens": tokens_of(demand) if reservation and demand else 0,
                    "used_tokens": bill.tokens,
                    "cost_usd": bill.nanodollars / NANO,
                    "source": "cache" if call.cached else "estimated" if bill.estimated else "backend",
                }
                if bill.charges:
                    facts["spent"] = [told(one) for one in bill.charges]
                call.receipt.note("quota", **facts)
                if bill.unpriced:
                    call.receipt.note("quota", unpriced=list(bill.unpriced))
                enter(call, bill, ended)

        return handle

    return stage


def told(charge: Charge) -> dict[str, Json]:
    """For the receipt."""
    spending = charge.spending
    return {
        "purpose": spending.purpose,
        "model": spending.model,
        "backend": spending.target.backend,
        "target": spending.target.model,
        "prompt_tokens": spending.usage.prompt,
        "completion_tokens": spending.usage.completion,
        "cost_usd": charge.nanodollars / NANO,
        "estimated": spending.estimated,
    }
