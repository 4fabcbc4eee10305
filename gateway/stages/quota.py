"""Holds what a request may use against its caller's limits, and settles with what it did use, exactly once."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Protocol

from gateway.errors import GatewayError
from gateway.observe.outcome import outcome_of, reason_of
from gateway.quota.price import NANO
from gateway.quota.quotas import Quotas, tokens_of
from gateway.quota.tally import Tally
from gateway.types import Call, Chunks, Handler, Stage, Usage

log = logging.getLogger(__name__)

NOTHING = Usage(0, 0)


class Ledger(Protocol):
    def record(
        self,
        call: Call,
        usage: Usage,
        cost_nanodollars: int,
        status: int,
        estimated: bool,
        error: str | None = None,
    ) -> object: ...


def quota(quotas: Quotas, ledger: Ledger | None = None) -> Stage:
    """``ledger`` is told of every request, once it has ended or was refused."""

    def enter(
        call: Call, usage: Usage, nanodollars: int, estimated: bool, ended: BaseException | None
    ) -> None:
        if ledger is None:
            return
        status, error = (200, None) if ended is None else (outcome_of(ended).status, reason_of(ended))
        try:
            ledger.record(call, usage, nanodollars, status, estimated, error)
        except Exception:
            log.exception("%s could not be entered in the ledger", call.request_id)

    def stage(following: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            try:
                reservation = await quotas.reserve(call)
            except GatewayError as error:
                enter(call, NOTHING, 0, False, error)
                raise
            demand = call.demand
            tally = Tally()
            ended: BaseException | None = None
            try:
                async with aclosing(following(call)) as chunks:
                    async for chunk in chunks:
                        tally.add(chunk)
                        yield chunk
            except BaseException as error:
                ended = error
                raise
            finally:
                bill = tally.bill(call, ended)
                usage = bill.usage
                if reservation is not None:
                    tokens = usage.prompt + usage.completion
                    quotas.settle(reservation, tokens=tokens, nanodollars=bill.nanodollars)
                if ended is None and not bill.estimated and call.cached is None:
                    quotas.estimator.learn(call, usage)
                call.receipt.note(
                    "quota",
                    reserved_tokens=tokens_of(demand) if reservation and demand else 0,
                    used_tokens=usage.prompt + usage.completion,
                    cost_usd=bill.nanodollars / NANO,
                    source="cache" if call.cached else "estimated" if bill.estimated else "backend",
                )
                if bill.unpriced:
                    call.receipt.note("quota", unpriced=list(bill.unpriced))
                enter(call, usage, bill.nanodollars, bill.estimated, ended)

        return handle

    return stage
