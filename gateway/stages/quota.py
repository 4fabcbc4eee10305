"""Holds what a request may use against its caller's limits, and settles with all that it did use, exactly once."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Protocol

from gateway.errors import GatewayError
from gateway.metering.bill import Bill, Charge, bill_of
from gateway.metering.price import NANO
from gateway.observe.outcome import outcome_of, reason_of
from gateway.quota.quotas import Quotas, tokens_of
from gateway.types import Call, Chunks, Handler, Json, Stage

log = logging.getLogger(__name__)


class RequestRecorder(Protocol):
    def record(self, call: Call, bill: Bill, status: int, error: str | None = None) -> object: ...


def quota(quotas: Quotas, recorder: RequestRecorder | None = None) -> Stage:
    """``recorder`` gets every request, once it has ended or was refused."""

    def enter(call: Call, bill: Bill, ended: BaseException | None) -> None:
        if recorder is None:
            return
        status, error = (200, None) if ended is None else (outcome_of(ended).status, reason_of(ended))
        try:
            recorder.record(call, bill, status, error)
        except Exception:
            log.exception("%s could not be entered in the ledger", call.request_id)

    def stage(following: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            try:
                reservation = await quotas.reserve(call)
            except GatewayError as error:
                enter(call, Bill(), error)
                raise
            estimate = call.estimate
            ended: BaseException | None = None
            try:
                async with aclosing(following(call)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except BaseException as error:
                ended = error
                raise
            finally:
                bill = bill_of(call.policy, call.upstream_usage)
                if reservation is not None:
                    quotas.settle(reservation, tokens=bill.tokens, nanodollars=bill.nanodollars)
                if ended is None and not bill.estimated and (answer := bill.answer) is not None:
                    quotas.estimator.learn(call, answer.upstream.usage)
                facts: dict[str, Json] = {
                    "reserved_tokens": tokens_of(estimate) if reservation and estimate else 0,
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
    upstream = charge.upstream
    return {
        "purpose": upstream.purpose,
        "model": upstream.model,
        "backend": upstream.target.backend,
        "target": upstream.target.model,
        "prompt_tokens": upstream.usage.prompt,
        "completion_tokens": upstream.usage.completion,
        "cost_usd": charge.nanodollars / NANO,
        "estimated": upstream.estimated,
    }
