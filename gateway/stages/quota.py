"""Reserves what a request may use of its caller's limits, and settles with what it did use, exactly once."""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

from gateway.errors import GatewayError
from gateway.metering.bill import Bill, Charge, bill_of
from gateway.metering.price import NANO
from gateway.observe.outcome import outcome_of, reason_of
from gateway.quota.allowance import Reservation
from gateway.quota.quotas import Quotas, tokens_of
from gateway.types import Call, Json, Usage

log = logging.getLogger(__name__)


class RequestAccounting(Protocol):
    def record(self, call: Call, bill: Bill, status: int, error: str | None = None) -> object: ...

    def record_for_house(self, call: Call, bill: Bill) -> object:
        """What was used on account of a line of a batch that had to give way."""
        ...


class QuotaRecorder:
    """``accounting`` gets every request once it has ended or was refused."""

    __slots__ = ("_accounting", "_call", "_quotas", "_reservation", "_reserved")

    chunk = None

    def __init__(self, quotas: Quotas, accounting: RequestAccounting | None, call: Call) -> None:
        self._quotas = quotas
        self._accounting = accounting
        self._call = call
        self._reservation: Reservation | None = None
        self._reserved = 0

    async def begin(self) -> None:
        try:
            self._hold(await self._quotas.reserve(self._call))
        except GatewayError as error:
            if self._call.line is None or self._call.line.is_final(error):
                self._enter(Bill(), error)
            raise

    def begin_now(self) -> None:
        """As ``begin``, without waiting and without a trace of what is refused. Raises ``GatewayError``."""
        self._hold(self._quotas.reserve_now(self._call))

    def end(self, error: BaseException | None) -> None:
        call, quotas = self._call, self._quotas
        line = call.line
        bill = bill_of(call.policy, call.upstream_usage, 1.0 if line is None else line.price_factor)
        if line is not None and not line.is_final(error):
            self._again(bill_of(call.policy, call.upstream_usage))
            return
        reservation = self._reservation
        if reservation is not None:
            quotas.settle(reservation, tokens=bill.tokens, nanodollars=bill.nanodollars)
        answer = bill.answer
        if error is None and answer is not None and not bill.estimated:
            quotas.estimator.learn(call, answer.upstream.usage)
        facts: dict[str, Json] = {
            "reserved_tokens": self._reserved,
            "used_tokens": bill.tokens,
            "cost_usd": bill.nanodollars / NANO,
            "source": "cache" if call.cached else "estimated" if bill.estimated else "backend",
        }
        if reservation is not None and reservation.limits.dollars is not None:
            facts["reserved_usd"] = reservation.held.nanodollars / NANO
        if answer is not None and answer.upstream.usage.units is not None:
            facts |= units_of(answer.upstream.usage)
        if bill.charges:
            facts["spent"] = [spent(charge) for charge in bill.charges]
        if line is not None:
            facts["price_factor"] = line.price_factor
        if bill.unpriced:
            facts["unpriced"] = list(bill.unpriced)
        call.receipt.note("quota", **facts)
        self._enter(bill, error)

    def _again(self, bill: Bill) -> None:
        """The line will run again, and is charged for then; what it used this time is the house's."""
        if self._reservation is not None:
            self._quotas.settle(self._reservation, tokens=0, nanodollars=0)
        self._call.receipt.note("quota", again=True)
        if bill.charges and self._accounting is not None:
            self._accounting.record_for_house(self._call, bill)

    def _hold(self, reservation: Reservation | None) -> None:
        self._reservation = reservation
        estimate = self._call.estimate
        self._reserved = tokens_of(estimate) if reservation is not None and estimate is not None else 0

    def _enter(self, bill: Bill, ended: BaseException | None) -> None:
        if self._accounting is None:
            return
        status, error = (200, None) if ended is None else (outcome_of(ended).status, reason_of(ended))
        try:
            self._accounting.record(self._call, bill, status, error)
        except Exception:
            log.exception("%s could not be entered in the ledger", self._call.request_id)


def quota(quotas: Quotas, accounting: RequestAccounting | None = None) -> partial[QuotaRecorder]:
    return partial(QuotaRecorder, quotas, accounting)


def spent(charge: Charge) -> dict[str, Json]:
    """A charge as the receipt has it."""
    upstream = charge.upstream
    return {
        "purpose": upstream.purpose,
        "model": upstream.model,
        "backend": upstream.target.backend,
        "target": upstream.target.model,
        "prompt_tokens": upstream.usage.prompt,
        "completion_tokens": upstream.usage.completion,
        **units_of(upstream.usage),
        "cost_usd": charge.nanodollars / NANO,
        "estimated": upstream.estimated,
    }


def units_of(usage: Usage) -> dict[str, Json]:
    """What is counted beside tokens, if anything is."""
    units = usage.units
    if units is None:
        return {}
    kind = units.kind.strip()
    return {"unit": units.unit, "units": units.amount, **({"kind": kind} if kind else {})}
