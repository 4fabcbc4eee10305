"""The runtime in force and its replacement by the next policy's, while requests are in flight."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.policy.history import PolicyHistory
from gateway.policy.loader import Loaded
from gateway.policy.revoked_keys import RevokedKeys
from gateway.runtime.budgets import watch_budgets
from gateway.runtime.build import build_runtime
from gateway.runtime.runtime import Runtime
from gateway.runtime.worker_state import WorkerState
from gateway.types import Backend

log = logging.getLogger(__name__)


class Generations:
    """All runtimes that requests may still use. What ``state`` holds outlives them."""

    def __init__(self, state: WorkerState, history: PolicyHistory | None = None) -> None:
        """Without ``history`` generations are counted."""
        self.number = 0
        """That of the policy in force, as the history has it."""
        self.loaded: Loaded | None = None
        """That policy, with the files that it was read from."""
        self._state = state
        state.replica_of = self.a_replica_of
        self._history = history
        self._current: Runtime | None = None
        self._live: list[Runtime] = []
        """Those that a request may still be using, the current one among them."""
        self._retiring: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()

    def current(self) -> Runtime:
        if self._current is None:
            raise RuntimeError("no policy has been applied yet")
        return self._current

    @contextmanager
    def a_replica_of(self, backend: str) -> Iterator[Backend | None]:
        """For a request of an earlier generation, which had none."""
        runtime = self.current()
        with runtime.in_use():
            members = runtime.members.get(backend, ())
            yield runtime.backends[self._state.random.choice(members).name] if members else None

    async def apply_policy(self, loaded: Loaded) -> None:
        """Make ``loaded`` the policy for every request from now on."""
        async with self._changing:
            await self._apply(loaded)

    async def replicas_changed(self) -> None:
        """The policy is the same, and the servers that it is about are not."""
        async with self._changing:
            if self.loaded is None:
                return
            self._replace(await build_runtime(self.loaded, self._state, self._current, same_policy=True))
            if (records := self.current().records) is not None:
                records.generation = self.number

    async def _apply(self, loaded: Loaded) -> None:
        self._replace(await build_runtime(loaded, self._state, self._current))
        runtime = self.current()
        self.loaded = loaded
        self._state.callbacks.update(loaded.policy)
        await watch_budgets(runtime.quotas, self._state.callbacks)
        metrics, policy = self._state.metrics, loaded.policy
        metrics.tenants.update(policy.metrics.tenants, policy.metrics.max_tenants, policy.tenants)
        metrics.models.update(policy.models.keys())
        self.number = (
            await asyncio.to_thread(self._history.number_of, loaded) if self._history else self.number + 1
        )
        metrics.policy_generation.set(self.number)
        if runtime.records is not None:
            runtime.records.generation = self.number
        for name, reason in (
            loaded.disabled.items() if self._history is None else ()
        ):  # else it is said for all workers
            log.warning("backend '%s' is disabled: %s", name, reason)

    def _replace(self, runtime: Runtime) -> None:
        before, self._current = self._current, runtime
        self._live.append(runtime)
        if before is not None:
            task = asyncio.create_task(self._retire(before))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    def withdraw(self, withdrawn: RevokedKeys) -> None:
        """Refuse these keys of the current policy, whatever it says itself."""
        self.current().authenticator.revoke(withdrawn)

    async def aclose(self) -> None:
        """Close everything, whether it is still in use or not."""
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        await self._state.shadows.aclose()
        if self._state.evaluator is not None:
            await self._state.evaluator.aclose()
        await asyncio.gather(*(runtime.flags.aclose() for runtime in self._live))
        live, self._live = self._live, []
        resources = {resource for runtime in live for resource in runtime.resources}
        await asyncio.gather(*(resource.aclose() for resource in resources))
        await self._state.aclose()

    async def _retire(self, old: Runtime) -> None:
        await old.unused()
        await old.flags.aclose()
        self._live.remove(old)
        # An older generation can outlive a newer one: what any of them holds stays open.
        held = {resource for runtime in self._live for resource in runtime.resources}
        for resource in old.resources - held:
            await resource.aclose()
