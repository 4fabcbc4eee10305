"""Requests that nobody waits for on a connection."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gateway.control.peers import Peers
from gateway.errors import Overloaded, UnknownModel
from gateway.types import Call, Principal

if TYPE_CHECKING:
    from gateway.runtime.runtime import Runtime

MOST = 1000
"""In flight, of one worker. Those that wait for a place at a backend count."""
LONGEST_WAIT = 900.0
"""Seconds for which one waits for a model that is out of service: as long as a restart takes, or a rollout."""
LOOK_EVERY = 0.5
CANCEL = "cancel"
"""What the workers call it when they ask one another."""


class BackgroundRequests:
    """Those in flight, by tenant and id. One per worker, which outlives policies; ``aclose`` it before them."""

    def __init__(
        self,
        peers: Peers | None = None,
        current: Callable[[], Runtime] | None = None,
        *,
        most: int = MOST,
    ) -> None:
        """``current`` gives the policy in force."""
        self._peers = peers
        self._current = current
        self._most = most
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self.closing = False
        """Those that are cancelled now are so because the worker stops."""

    def start(self, tenant: str, name: str, work: Coroutine[None, None, None]) -> None:
        """Raises ``Overloaded``."""
        if self.closing or len(self._tasks) >= self._most:
            work.close()
            raise Overloaded(
                f"{len(self._tasks)} requests run in the background, and no more are taken. Try again.",
                retry_after=5.0,
            )
        key = (tenant, name)
        task = self._tasks[key] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def in_service(self, call: Call, runtime: Runtime) -> tuple[Runtime, Call]:
        """By which policy ``call`` is answered, and as what: where by ``runtime`` none of its model's backends is in
        use, as while one is drained, the first policy is awaited by which one is, for ``LONGEST_WAIT`` at most.

        Raises ``UnknownModel`` and ``Unauthenticated`` where the caller may not have it any more.
        """
        first, name, began = runtime, call.request.model, time.perf_counter()
        until = min(began + LONGEST_WAIT, call.deadline or math.inf)
        while self._current is not None and runtime.out_of_use(name):
            if time.perf_counter() >= until:
                break
            await asyncio.sleep(LOOK_EVERY)
            runtime, _ = _named(self._current(), call.principal, name)
        if runtime is first:
            return runtime, call
        principal = runtime.authenticator.still(call.principal)
        runtime, model = _named(runtime, principal, name)
        if model is None:
            raise UnknownModel.named(name)
        now = time.perf_counter()
        call.receipt.note("background", out_of_service_ms=round(1000 * (now - began)))
        return runtime, replace(call, principal=principal, policy=runtime.policy, model=model, started=now)

    async def cancel(self, tenant: str, name: str) -> bool:
        """Whether it was in flight, here or in another worker of this machine. It has ended then."""
        if await self._cancel_here(tenant, name):
            return True
        if self._peers is None:
            return False
        try:
            answers = await self._peers.ask_others({"do": CANCEL, "tenant": tenant, "id": name})
        except TimeoutError:  # it is left in the store, too, that it is to be cancelled
            return False
        return any(answer.get("cancelled") for answer in answers)

    async def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Cancel it where it is made here, for another worker."""
        return {"cancelled": await self._cancel_here(str(asked["tenant"]), str(asked["id"]))}

    async def _cancel_here(self, tenant: str, name: str) -> bool:
        task = self._tasks.get((tenant, name))
        if task is None:
            return False
        task.cancel()
        await asyncio.wait([task])
        return True

    async def aclose(self) -> None:
        """Cancel what is in flight, and take nothing more."""
        self.closing = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _named(runtime: Runtime, principal: Principal, name: str) -> tuple[Runtime, str | None]:
    """The model that ``name`` means, where ``principal`` may use it, and the runtime that answers for it: ``runtime``,
    or an adapter's."""
    model = runtime.policy.resolve(name)
    if model is not None and (principal.may_use(model) or principal.may_use(name)):
        return runtime, model
    adapted = runtime.adapters.find(principal, name) if runtime.adapters is not None else None
    return (runtime, None) if adapted is None else (adapted, adapted.policy.resolve(name))
