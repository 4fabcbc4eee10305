"""Tells receivers of the policy's choice what happens: budgets, breakers, refused policies, blocked contents, outliers,
roll-outs, drifts.

Never any text of a request. Of what several workers or replicas see, the one that is first in ``Tally`` tells; their
messages have the same id in any case, by which receivers can tell them apart where there is no common store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import httpx
import orjson

from gateway.metering.price import NANO
from gateway.observe.callback_endpoint import DELAYS, CallbackEndpoint, Message
from gateway.observe.ledger.cost_outliers import Outlier
from gateway.observe.metrics import Metrics
from gateway.policy.problems import PolicyError
from gateway.policy.redaction import without_values
from gateway.policy.schema import Policy
from gateway.policy.schema.callbacks import CallbackEvent
from gateway.stores.store import StoreDown
from gateway.stores.tally import MemoryTally, RedisTally, Tally
from gateway.types import Call, Json

log = logging.getLogger(__name__)

SECONDS_TO_CLOSE = 3.0
_BREAKER_WINDOW, _POLICY_WINDOW = 60, 600
"""Seconds within which the same change, seen by several, is one event."""
_HOUR, _PERIOD = 3600.0, 40 * 86_400.0
"""Seconds for which it is remembered that an event was told; a budget's for longer than a month."""
_EARLY = 16
"""Events that wait for the first policy."""
_MOST_PROBLEMS, _LONGEST = 20, 2_000
"""Of a refused policy, and characters of each."""


@dataclass(frozen=True, slots=True)
class _Event:
    kind: CallbackEvent
    type: str
    identity: tuple[object, ...]
    """What makes it another event than others of its type."""
    data: Mapping[str, Json]
    is_shared: bool = True
    """Whether others may see the same."""
    share: float | None = None


class Callbacks:
    """A worker's. Does nothing, and costs nothing, while the policy names no receiver."""

    def __init__(
        self,
        metrics: Metrics,
        transport: httpx.AsyncBaseTransport,
        *,
        worker: int = 1,
        delays: Sequence[float] = DELAYS,
        clock: Callable[[], float] = time.time,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """``transport`` stays the caller's to close."""
        self.endpoints: tuple[CallbackEndpoint, ...] = ()
        self.tally: Tally = MemoryTally()
        """What workers count together."""
        self._metrics = metrics
        self._transport = transport
        self._worker = worker
        self._delays = delays
        self._clock = clock
        self._env = env
        self._store: str | None = None
        self._early: deque[_Event] = deque(maxlen=_EARLY)
        self._tasks: set[asyncio.Task[None]] = set()

    def update(self, policy: Policy) -> None:
        """Serve the receivers of ``policy``; those that it has in common with the one before go on."""
        is_first = self._store is None
        if policy.store != self._store and policy.callbacks:
            old, self._store = self.tally, policy.store
            self.tally = MemoryTally() if policy.store == "memory" else RedisTally(policy.store)
            self._begin(old.aclose())
        known = {one.config: one for one in self.endpoints}
        before, self.endpoints = (
            self.endpoints,
            tuple(
                known.get(config)
                or CallbackEndpoint(
                    config, self._transport, self._metrics, delays=self._delays, clock=self._clock
                )
                for config in dict.fromkeys(policy.callbacks)
            ),
        )
        for endpoint in set(before) - set(self.endpoints):
            self._begin(endpoint.aclose(SECONDS_TO_CLOSE))
        if is_first:
            self._store = self._store or ""
            early, self._early = list(self._early), deque(maxlen=_EARLY)
            for event in early:
                self._emit(event)

    def wants(self, kind: CallbackEvent) -> bool:
        return any(kind in endpoint.config.events for endpoint in self.endpoints)

    @property
    def budget_shares(self) -> frozenset[float]:
        """All marks that a receiver wants to hear of."""
        return frozenset(
            share
            for endpoint in self.endpoints
            if "budget" in endpoint.config.events
            for share in endpoint.config.budget_at
        )

    def budget_reached(
        self,
        scope: str,
        owner: str,
        window: str,
        period: str,
        share: float | None,
        *,
        nanodollars: int,
        budget: int,
    ) -> None:
        """``nanodollars`` of ``budget`` have been spent in ``period``, which is ``share`` of it, or too much (None) for
        a request that was refused."""
        data = {
            "scope": scope,
            scope: owner,
            "window": window,
            "period": period,
            **({"share": share} if share is not None else {}),
            "spent_usd": nanodollars / NANO,
            "budget_usd": budget / NANO,
        }
        identity = (scope, owner, window, period, share, budget)
        event = "budget.refused" if share is None else "budget.reached"
        self._emit(_Event("budget", event, identity, data, share=share))

    def breaker_changed(
        self, is_open: bool, backend: str, model: str, tenant: str | None, key_id: str | None, **facts: Json
    ) -> None:
        """``facts``: failures and cooldown of one that opened."""
        data = {
            "backend": backend,
            "model": model,
            "tenant": tenant,
            "key_id": key_id,
            "worker": self._worker,
            **facts,
        }
        identity = (backend, model, tenant, key_id, int(self._clock() // _BREAKER_WINDOW))
        self._emit(_Event("breaker", "breaker.opened" if is_open else "breaker.closed", identity, data))

    def policy_rejected(self, error: Exception) -> None:
        """A policy that cannot be taken up; the one before stays."""
        if isinstance(error, PolicyError):
            problems = [
                {"file": str(one.file), "line": one.line, "message": self._told(one.message)}
                for one in error.problems[:_MOST_PROBLEMS]
            ]
        else:
            problems = [
                {"file": None, "line": None, "message": self._told(f"{type(error).__name__}: {error}")}
            ]
        data = {"problems": problems, "worker": self._worker}
        identity = (str(error), int(self._clock() // _POLICY_WINDOW))
        self._emit(_Event("policy", "policy.rejected", identity, data))

    def rollout_decided(
        self, what: str, model: str, rollout: str, run: int, number: int, share: float, why: str
    ) -> None:
        """``number`` is that of the decision: told again, it is the same message."""
        data = {"model": model, "rollout": rollout, "run": run, "share": share, "why": why}
        self._emit(_Event("rollout", f"rollout.{what}", (rollout, number), data))

    def drift_found(
        self, model: str, route: str, measure: str, since: int, facts: Mapping[str, Json]
    ) -> None:
        """``since`` is the hour in which it was found, in Unix time."""
        hour = datetime.fromtimestamp(since, UTC).isoformat().replace("+00:00", "Z")
        data = {"model": model, "route": route, "measure": measure, "since": hour, **facts}
        self._emit(_Event("drift", "drift.found", (model, route, measure, since), data))

    def guard_blocked(self, call: Call) -> None:
        """A request that a guard refused, or an answer that one cut, as the receipt has it."""
        for facts in _blocks(call):
            data = {
                "request_id": call.request_id,
                "tenant": call.principal.tenant,
                "key_id": call.principal.key_id,
                "model": call.model,
                "route": call.route,
                **facts,
            }
            identity = (call.request_id, facts["guard"], facts["direction"])
            self._emit(_Event("guard", "guard.blocked", identity, data, is_shared=False))

    def cost_outlier(self, found: Outlier, span: float) -> None:
        """An end user has cost far more than others in the last ``span`` seconds; told once a day."""
        data = {
            "tenant": found.tenant,
            "user": found.user,
            "hours": span / 3600,
            "spent_usd": found.nanodollars / NANO,
            "usual_usd": found.usual / NANO,
            "users": found.users,
            "z": found.z,
        }
        day = datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
        self._emit(_Event("cost", "cost.outlier", (found.tenant, found.user, day), data))

    async def idle(self) -> None:
        """Wait until every event so far has gone to its receivers' queues."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self) -> None:
        """What waits is sent within a few seconds, or lost and counted."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        await asyncio.gather(*(endpoint.aclose(SECONDS_TO_CLOSE) for endpoint in self.endpoints))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.tally.aclose()

    def _told(self, message: str) -> str:
        return without_values(message, self._env)[:_LONGEST]

    def _emit(self, event: _Event) -> None:
        if self._store is None:
            self._early.append(event)
            return
        if not self.wants(event.kind):
            return
        moment = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        body = orjson.dumps(
            {"type": event.type, "timestamp": moment.replace("+00:00", "Z"), "data": dict(event.data)}
        )
        digest = blake2b(orjson.dumps((event.type, *event.identity)), digest_size=16).hexdigest()
        message = Message(f"msg_{digest}", event.kind, body, event.share)
        if event.is_shared:
            self._begin(self._if_first(message))
        else:
            self._send(message)

    async def _if_first(self, message: Message) -> None:
        ttl = _PERIOD if message.kind in ("budget", "cost") else _HOUR
        try:
            if (await self.tally.add({message.id: 1}, ttl)).get(message.id, 1) > 1:
                return
        except StoreDown:
            pass  # told twice is better than never
        self._send(message)

    def _send(self, message: Message) -> None:
        for endpoint in self.endpoints:
            if endpoint.wants(message):
                endpoint.add(message)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _blocks(call: Call) -> list[dict[str, Json]]:
    notes = call.receipt.notes
    found = []
    for name, facts in notes.get("guard_input", {}).get("guards", {}).items():
        if facts.get("action") == "block" and facts.get("labels"):
            found.append({"guard": name, "direction": "input", **_verdict(facts)})
    output = notes.get("guard_output", {})
    cut = output.get("cut")
    if cut is not None and cut.get("reason") == "content_filter":
        facts = output.get("guards", {}).get(cut["guard"], {})
        found.append({"guard": cut["guard"], "direction": "output", **_verdict(facts)})
    return found


def _verdict(facts: Mapping[str, Json]) -> dict[str, Json]:
    return {name: facts[name] for name in ("labels", "check", "score") if name in facts}
