"""The roll-outs of the policy in force: where their states are, who looks after them, who is told."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.control.audit_log import Actor, AuditLog
from gateway.databases.opening import open_tables
from gateway.experiments.common_states import ROLLOUTS, CommonStates, RedisStates, TableStates
from gateway.experiments.keeper import EVERY, Keeper, Told
from gateway.experiments.observed import observed
from gateway.experiments.rollout_state import RolloutState
from gateway.observe.accounting import Accounting
from gateway.observe.callbacks import Callbacks
from gateway.observe.ended import Ended
from gateway.policy.schema import LedgerSettings, Policy, Rollout
from gateway.stores.store import StoreDown
from gateway.types import Arm, Call

log = logging.getLogger(__name__)

_MOST_PENDING = 100_000
"""Requests that ended since the last look; more are not looked at."""
KEEPER = Actor("gateway", "roll-outs")
"""Whose decisions are nobody's."""


class Rollouts:
    """One per worker; it outlives policies. Nothing runs while the policy has no roll-out."""

    def __init__(self, state_dir: Path, callbacks: Callbacks) -> None:
        self._state_dir = state_dir
        self._callbacks = callbacks
        self._where: tuple[str, LedgerSettings] | None = None
        self._keeper: Keeper | None = None
        self._pending: deque[tuple[Arm, Ended]] = deque(maxlen=_MOST_PENDING)
        self._running: asyncio.Task[None] | None = None

    @property
    def of_policy(self) -> Mapping[str, tuple[str, Rollout]]:
        """By experiment: the model, and its roll-out."""
        return self._keeper.rollouts if self._keeper is not None else {}

    @property
    def unreadable(self) -> int:
        """How many have a common state that cannot be read."""
        return self._keeper.unreadable if self._keeper is not None else 0

    async def update(self, policy: Policy) -> None:
        """Look after those of ``policy``. How far they have come is known when this returns, if the store answers."""
        wanted = {
            model.rollout.experiment(name): (name, model.rollout)
            for name, model in policy.models.items()
            if model.rollout is not None
        }
        if not wanted:
            await self.aclose()
            return
        where = policy.store, policy.ledger
        if self._keeper is None:
            self._keeper = Keeper(self._states(policy), wanted, self._tell)
        elif self._where != where:
            before, self._keeper.states = self._keeper.states, self._states(policy)
            await before.aclose()
        self._where = where
        self._keeper.rollouts = wanted
        await self._look(self._keeper)
        if self._running is None:
            self._running = asyncio.create_task(self._run(self._keeper), name="roll-outs")

    def is_new(self, experiment: str, key: bytes) -> bool:
        return self._keeper is not None and self._keeper.is_new(experiment, key)

    def ended(self, arm: Arm, ended: Ended) -> None:
        """It is looked at a moment later, when all of it is known."""
        self._pending.append((arm, ended))

    def scored(self, arm: Arm, source: str, at: float, score: float) -> None:
        """An answer to a request that came ``at`` (Unix time) has a score, from 0 to 1."""
        if self._keeper is not None:
            self._keeper.scored(*arm, source, at, score)

    def state(self, experiment: str) -> RolloutState | None:
        return self._keeper.state(experiment) if self._keeper is not None else None

    async def stop(self, model: str, by: Actor) -> RolloutState:
        """Raises ``NoSuchRollout``, ``NotNow``, ``StoreDown``."""
        return await self._kept.stop(model, by.content())

    async def begin(self, model: str, by: Actor) -> RolloutState:
        """Anew. Raises ``NoSuchRollout``, ``NotNow``, ``StoreDown``."""
        return await self._kept.begin(model, by.content())

    @property
    def _kept(self) -> Keeper:
        if self._keeper is None:
            raise StoreDown("the policy has no roll-out")
        return self._keeper

    async def aclose(self) -> None:
        """What was seen up to now goes into the common states."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await self._look(keeper)
            await keeper.states.aclose()

    def _states(self, policy: Policy) -> CommonStates:
        if policy.store != "memory":
            return RedisStates(policy.store)
        return TableStates(open_tables(ROLLOUTS, policy.ledger, self._state_dir))

    async def _run(self, keeper: Keeper) -> None:
        while True:
            await asyncio.sleep(EVERY)
            await self._look(keeper)

    async def _look(self, keeper: Keeper) -> None:
        while self._pending:
            arm, ended = self._pending.popleft()
            try:
                if (one := observed(arm, ended)) is not None:
                    keeper.record(*arm, one)
            except Exception:
                log.exception("%s could not be counted for its roll-out", ended.request_id)
        await keeper.look()

    async def _tell(self, told: Told) -> None:
        decision = told.decision
        actor = Actor.of(decision.by) if decision.by is not None else KEEPER
        facts: dict[str, Any] = {
            "rollout": told.experiment,
            "run": decision.run,
            "share": decision.share,
            "why": decision.why,
        }
        log.log(
            logging.WARNING if decision.what == "returned" else logging.INFO,
            "roll-out of '%s': %s at %g %%: %s",
            *(told.experiment, decision.what, decision.share, decision.why),
        )
        try:
            await asyncio.to_thread(
                lambda: AuditLog(self._state_dir).add(actor, f"rollout.{decision.what}", told.model, **facts)
            )
        except OSError as error:
            log.error(
                "a decision about the roll-out '%s' is missing from the audit log: %s", told.experiment, error
            )
        self._callbacks.rollout_decided(
            decision.what,
            told.model,
            told.experiment,
            decision.run,
            decision.number,
            decision.share,
            decision.why,
        )


class RolloutAccounting(Accounting):
    """Where the policy has roll-outs: their requests are looked at, too."""

    def __init__(self, *given: Any, rollouts: Rollouts) -> None:
        super().__init__(*given)
        self._rollouts = rollouts

    def record(self, call: Call, ended: Ended) -> None:
        super().record(call, ended)
        candidate = ended.candidate
        if candidate is not None and candidate.arm is not None and call.line is None:
            self._rollouts.ended(candidate.arm, ended)
