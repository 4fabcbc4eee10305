"""Copies of calls, sent to a shadow model; their answers are counted, and discarded unless somebody compares them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from random import Random
from typing import Protocol, TypeVar

from gateway.errors import GatewayError, UpstreamTimeout
from gateway.observe.outcome import outcome_of
from gateway.policy.schema import Policy, Shadow
from gateway.residency import residency_of
from gateway.types import HOUSE, Call, Chunk, Handler, Principal, Receipt

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 64
"""Copies; beyond that calls are not copied."""

Counted = Callable[[str, str], None]
"""Takes the shadow model and how its answer ended: an HTTP status, or ``skipped``."""


class Watcher(Protocol):
    """Who wants to know what a copy was answered."""

    def chunk(self, chunk: Chunk) -> object: ...

    def copy_ended(self, copy: Call, status: int, seconds: float) -> object: ...


W = TypeVar("W", bound=Watcher)


def _nobody(call: Call) -> None:
    """Watches."""


class Shadows:
    """The copies in flight. One per process, which outlives policies; ``aclose`` it before the backends."""

    def __init__(self, *, max_in_flight: int = MAX_IN_FLIGHT, random: Random | None = None) -> None:
        self._max_in_flight = max_in_flight
        self._random = random or Random()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    def send(
        self,
        call: Call,
        rule: Shadow,
        following: Handler,
        count: Counted,
        watch: Callable[[Call], W | None] = _nobody,
    ) -> W | None:
        """Send a copy of ``call`` in the background, for a random share of calls. Never raises, never waits.

        ``watch`` says who watches it, where there is one; returns that."""
        if self._closed or self._random.random() >= rule.share:
            return None
        if len(self._tasks) >= self._max_in_flight:
            call.receipt.note("shadow", model=rule.model, outcome="skipped")
            count(rule.model, "skipped")
            return None
        call.receipt.note("shadow", model=rule.model)
        watcher = watch(call)
        copy = copy_of(call, rule.model)
        task = asyncio.create_task(self._run(call.receipt, copy, following, count, watcher))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return watcher

    async def aclose(self) -> None:
        """Cancel what is in flight, and send nothing more."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(
        self, receipt: Receipt, copy: Call, following: Handler, count: Counted, watcher: Watcher | None
    ) -> None:
        status = 200
        try:
            async with asyncio.timeout(copy.timeouts.total), aclosing(following(copy)) as chunks:
                async for chunk in chunks:
                    if watcher is not None:
                        watcher.chunk(chunk)
        except TimeoutError:
            status = UpstreamTimeout.status
        except GatewayError as error:
            status = error.status
        except asyncio.CancelledError as error:
            status = outcome_of(error).status
            raise
        except Exception as error:
            status = outcome_of(error).status
            log.exception("%s failed", copy.request_id)
        finally:
            seconds = round(time.perf_counter() - copy.started, 6)
            # The receipt may have been written by now; the metrics are counted all the same.
            receipt.note("shadow", outcome=str(status), seconds=seconds)
            if (cost := copy.receipt.notes.get("quota", {}).get("cost_usd")) is not None:
                receipt.note("shadow", cost_usd=cost, paid_by=copy.policy.billing.shadow)
            count(copy.model, str(status))
            if watcher is not None:
                watcher.copy_ended(copy, status, seconds)


def copy_of(call: Call, model: str) -> Call:
    """``call`` as ``model`` gets it: in the lowest tier, on spare capacity, without the caller's headers.

    What is known of the content and the caller, such as ``local_only`` and the tenant, holds for it too.
    """
    request_id = f"{call.request_id}-shadow"
    return replace(
        call,
        request_id=request_id,
        principal=replace(call.principal, tier=_lowest_tier(call.policy, call.principal.tier)),
        request=replace(call.request, model=model, stream=False, include_usage=False),
        receipt=Receipt(request_id, call.receipt.created),
        started=time.perf_counter(),
        headers={"x-request-id": request_id},
        model=call.policy.resolve(model) or model,
        deadline=None,
        residency=residency_of(call),
        shadow=True,
        line=None,
        purpose="shadow",
        payer=call.principal
        if call.policy.billing.shadow == "tenant"
        else Principal("shadow", HOUSE, tier=HOUSE),
        estimate=None,
        allowance=None,
        cap=None,
        candidates=(),
        candidate=None,
        hints={},
        reply_headers={},
        upstream_usage=[],
    )


def _lowest_tier(policy: Policy, tier: str) -> str:
    """The one that is shed first; a tier that the policy does not describe is one too."""
    return min((*policy.tiers, tier), key=lambda name: (policy.tier(name).priority, policy.tier(name).weight))
