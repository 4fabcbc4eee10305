"""A request that has ended, as it was: typed, and small, as it outlives the request by a moment.

Its receipt's last facts, its log line and its row of the ledger are rendered from it by the threads that write them
(``BatchWriter``), or when somebody reads them: no caller waits for that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from gateway.metering.bill import Bill, Charge
from gateway.metering.price import NANO
from gateway.observe.events import BLANK, KEYS, EventRecord, Fact
from gateway.types import Call, Json, Receipt, Usage

FREE = Bill()


class Ended:
    """``bill`` is what it used of its caller's limits, ``error`` why it failed (``gateway.observe.outcome.reason_of``).

    It holds nothing that holds the call, or the content of one. The rest is set by who knows it, where it applies.
    """

    code: str | None = None
    """The error's own code, which can be any text."""
    trace_id: str | None = None
    is_metered = False
    """Whether it is counted as a request to a model. Then:"""
    first_token: float | None = None
    """Seconds from its arrival."""
    chunks_after_first = 0
    usage: Usage | None = None
    """What its caller was told."""
    finish_reason: str | None = None
    """Of its first choice that has one."""
    has_refusal = False
    """The answer has text that the model marks as a refusal."""
    is_settled = False
    """Whether its bill stands. Then:"""
    reserved_tokens = 0
    reserved_nanodollars: int | None = None
    price_factor: float | None = None
    runs_again = False
    """It is a line of a batch, which gave way, or whose server failed."""

    def __init__(self, call: Call, bill: Bill = FREE, status: int = 200, error: str | None = None) -> None:
        receipt, request = call.receipt, call.request
        self.request_id = call.request_id
        self.created = receipt.created
        self.noted = receipt.noted
        self.principal = call.principal
        self.asked = request.model
        self.stream = request.stream
        self.candidate = call.candidate
        self.cached = call.cached
        self.user_agent = call.user_agent
        self.tags = call.tags
        self.end_user = end_user(request.params) if request.params else ""
        self.seconds = round(time.perf_counter() - call.started, 6)
        self.bill = bill
        self.status = status
        self.error = error

    @property
    def inter_token(self) -> float | None:
        """Mean seconds between two tokens of a stream that came as it was made."""
        if (
            not self.stream
            or self.first_token is None
            or self.cached is not None
            or not self.chunks_after_first
        ):
            return None
        tokens = self.usage.completion - 1 if self.usage is not None else 0
        return round((self.seconds - self.first_token) / max(tokens, self.chunks_after_first), 6)

    @property
    def model_refused(self) -> bool:
        """The model itself, or its provider's filter, would not answer; no guard of ours."""
        filtered = self.finish_reason == "content_filter" and "cut" not in self.noted.get("guard_output", ())
        return self.has_refusal or filtered or self.error == "upstream_content_policy"

    @property
    def attempts(self) -> int:
        """How often a backend was asked."""
        return Receipt.attempts_in(self.noted)

    @property
    def backend(self) -> str | None:
        """The last that was asked: what our own queue refused was not sent."""
        attempts = self.noted.get("fallback", {}).get("attempts")
        return attempts[-1]["backend"] if attempts and attempts[-1].get("admitted", True) else None

    def notes(self) -> dict[str, dict[str, Json]]:
        """What it adds to its receipt."""
        notes: dict[str, dict[str, Json]] = {}
        if self.runs_again:
            notes["quota"] = {"again": True}
        elif self.is_settled:
            notes["quota"] = self._charged()
        if self.is_metered:
            notes["meter"] = self._measured()
        if self.trace_id is not None:
            notes["trace"] = {
                "trace_id": self.trace_id,
                "key": self.principal.key_id,
                "status": self.status,
                "seconds": self.seconds,
            }
        return notes

    def _charged(self) -> dict[str, Json]:
        bill = self.bill
        facts: dict[str, Json] = {
            "reserved_tokens": self.reserved_tokens,
            "used_tokens": bill.tokens,
            "cost_usd": bill.nanodollars / NANO,
            "source": "cache" if self.cached else "estimated" if bill.estimated else "backend",
        }
        if self.reserved_nanodollars is not None:
            facts["reserved_usd"] = self.reserved_nanodollars / NANO
        if (answer := bill.answer) is not None:
            facts |= units_of(answer.upstream.usage)
        if bill.charges:
            facts["spent"] = [spent(charge) for charge in bill.charges]
        if self.price_factor is not None:
            facts["price_factor"] = self.price_factor
        if bill.unpriced:
            facts["unpriced"] = list(bill.unpriced)
        return facts

    def _measured(self) -> dict[str, Json]:
        facts: dict[str, Json] = {}
        if self.error is not None:
            facts["error"] = self.code
        if self.first_token is not None:
            facts["first_token"] = self.first_token
        usage = self.usage
        if usage is not None:
            facts["prompt_tokens"] = usage.prompt
            facts["completion_tokens"] = usage.completion
            facts["cached_tokens"] = usage.cached
            if usage.cache_write:
                facts["cache_write_tokens"] = usage.cache_write
            facts["reasoning_tokens"] = usage.reasoning
        facts["chunks_after_first"] = self.chunks_after_first
        return facts


def end_user(params: Mapping[str, Json]) -> str:
    """Whoever the caller asks for, as it names them; Anthropic's ``metadata.user_id`` is ``user`` here."""
    user = params.get("user") or params.get("safety_identifier")
    if user is None and isinstance(metadata := params.get("metadata"), Mapping):
        user = metadata.get("user_id")
    return user if isinstance(user, str) else ""


class RequestLine(EventRecord):
    """The log line of a request that has ended: the event ``request``."""

    def __init__(self, name: str, level: int, ended: Ended) -> None:
        self.__dict__.update(BLANK[level])
        self.name = name
        self.created = now = time.time()
        self.msecs = now % 1 * 1000
        self.ended = ended

    def getMessage(self) -> str:
        ended = self.ended
        message = f"{ended.request_id} {ended.asked} {ended.status} {ended.seconds * 1000:.1f} ms"
        if ended.error is not None:
            message += f" {ended.error} tenant={ended.principal.tenant} backend={ended.backend or '-'}"
        return message

    @property
    def facts(self) -> dict[str, Fact]:
        ended = self.ended
        usage = ended.usage
        answer = ended.bill.answer if ended.is_settled else None
        units = answer.upstream.usage.units if answer is not None else None
        values = (
            *(ended.request_id, ended.trace_id, ended.principal.tenant, ended.principal.key_id),
            *(ended.asked, ended.backend, ended.status, ended.error),
            *((None, None) if usage is None else (usage.prompt, usage.completion)),
            *((None, None) if units is None else (units.unit, units.amount)),
            *(ended.bill.nanodollars / NANO if ended.is_settled else None, ended.seconds),
        )
        return {"event": "request", **dict(zip(KEYS["request"], values, strict=True))}


def level_of(status: int) -> int:
    """The level of a request's log line: failures are warnings, internal ones errors."""
    if status < 400 or status == 499:
        return logging.INFO
    return logging.ERROR if status == 500 else logging.WARNING


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
