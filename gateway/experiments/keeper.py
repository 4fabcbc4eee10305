"""One worker's part in the roll-outs of its policy: what it saw goes into their common states, shares come out.

Every worker adds what it saw; the one that has a state's lease decides. Each change is one compare-and-set of the whole
state, so whoever is killed leaves it as it was before or after a change. What it saw since its last one, of at most
``EVERY`` seconds, is lost with it; another has the lease ``LEASE`` seconds later.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.experiments.assignment import is_new
from gateway.experiments.common_states import CommonStates
from gateway.experiments.evidence import Observed, Seen
from gateway.experiments.rollout_state import Decision, RolloutState, Status
from gateway.experiments.scores import step_of
from gateway.policy.schema import Rollout
from gateway.stores.store import StoreDown

log = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds between two looks at the states."""
LEASE = 10.0
"""Seconds. The clocks of all gateways should agree to much less."""
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Told:
    """A decision, and of what."""

    experiment: str
    model: str
    decision: Decision


class NoSuchRollout(Exception):
    """The policy has none for this model."""


class Unreadable(StoreDown):
    """The common state is there and says nothing to this release. It is left as it is."""


class NotNow(Exception):
    """What does not run cannot be stopped, and what runs not begun anew. ``status``: as it is."""

    def __init__(self, status: Status) -> None:
        super().__init__(status)
        self.status = status


class Keeper:
    """``rollouts`` are those of the policy, by experiment: a model's name, and what is rolled out to it. ``tell`` is
    told of each decision, once or, after a kill, again."""

    def __init__(
        self,
        states: CommonStates,
        rollouts: Mapping[str, tuple[str, Rollout]],
        tell: Callable[[Told], Awaitable[None]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.states = states
        self.rollouts = rollouts
        self.owner = secrets.token_hex(8)
        self._tell = tell
        self._clock = clock
        self._known: dict[str, RolloutState] = {}
        self._seen: dict[str, tuple[int, Seen]] = {}
        """By experiment, of one run."""
        self._down = False
        self._failing: set[str] = set()
        """Experiments whose last look failed otherwise, of which the log has been told."""
        self._looking = asyncio.Lock()

    def is_new(self, experiment: str, key: bytes) -> bool:
        """Whether ``key`` goes to the new target. The present one serves while no state is known."""
        known = self._known.get(experiment)
        if known is None or not known.share:
            return False
        return known.share >= 100.0 or is_new(experiment, key, known.share / 100.0)

    def record(self, experiment: str, arm: str, one: Observed) -> None:
        known = self._known.get(experiment)
        if known is not None and known.status == "running":
            self._seen_in(experiment, known.run).arms[arm].add(one)

    def scored(self, experiment: str, arm: str, source: str, at: float, score: float) -> None:
        """An answer to a request that came ``at`` (Unix time) has a score. Of an earlier step it says nothing: the
        shares were others then."""
        known = self._known.get(experiment)
        if known is not None and known.status == "running" and at >= known.since:
            self._seen_in(experiment, known.run).scores[source][arm][step_of(score)] += 1

    def _seen_in(self, experiment: str, run: int) -> Seen:
        in_run, seen = self._seen.get(experiment, (run, None))
        if seen is None or in_run != run:
            seen = Seen()
            self._seen[experiment] = (run, seen)
        return seen

    def state(self, experiment: str) -> RolloutState | None:
        """As it was known a moment ago; not to be changed."""
        return self._known.get(experiment)

    @property
    def unreadable(self) -> int:
        """How many of the states cannot be looked at, other than for a store that is away."""
        return len(self._failing)

    async def look(self) -> None:
        """Once at each state. What fails is logged, and tried again at the next look."""
        async with self._looking:  # two looks at once would tell a decision twice
            await self._look_at_all()

    async def _look_at_all(self) -> None:
        down = False
        for experiment, (model, rollout) in self.rollouts.items():
            try:
                await self._look(experiment, model, rollout)
            except Unreadable as error:
                if experiment not in self._failing:
                    log.error("%s", error)
                self._failing.add(experiment)
                continue
            except StoreDown as error:
                down = True
                if not self._down:
                    log.warning("roll-outs stay where they are while their state cannot be read: %s", error)
                continue
            except Exception:
                if experiment not in self._failing:
                    log.exception(
                        "the roll-out '%s' could not be looked at; it is tried each second", experiment
                    )
                self._failing.add(experiment)
                continue
            if experiment in self._failing:
                self._failing.discard(experiment)
                log.warning("the roll-out '%s' goes on: its state can be read again", experiment)
        self._failing.intersection_update(self.rollouts)
        self._down = down

    async def stop(self, model: str, by: Mapping[str, str] | None) -> RolloutState:
        """Raises ``NoSuchRollout``, ``NotNow``, ``StoreDown``."""

        def change(state: RolloutState, rollout: Rollout) -> None:
            if not state.is_running:
                raise NotNow(state.status)
            state.stop(self._clock(), by)

        return await self._order(model, change)

    async def begin(self, model: str, by: Mapping[str, str] | None) -> RolloutState:
        """Anew. Raises ``NoSuchRollout``, ``NotNow``, ``StoreDown``."""

        def change(state: RolloutState, rollout: Rollout) -> None:
            if state.is_running:
                raise NotNow(state.status)
            state.begin(rollout, self._clock(), by)

        return await self._order(model, change)

    async def _order(self, model: str, change: Callable[[RolloutState, Rollout], None]) -> RolloutState:
        """``change`` judges by the common state: what this worker knows of it may be a second old."""
        found = next((one for one, (name, _) in self.rollouts.items() if name == model), None)
        if found is None:
            raise NoSuchRollout(model)
        _, rollout = self.rollouts[found]
        return await self._changed(found, lambda state: change(state, rollout))

    async def _look(self, experiment: str, model: str, rollout: Rollout) -> None:
        run, seen = self._seen.pop(experiment, (0, None))
        now = self._clock()

        def change(state: RolloutState) -> None:
            if not state.run:
                state.begin(rollout, now)
            if seen is not None:
                state.add(run, seen, rollout)
            if state.owner == self.owner or state.lease <= now:
                if state.owner != self.owner or state.lease - now < LEASE / 2:
                    state.owner, state.lease = self.owner, now + LEASE
                state.decide(rollout, now)

        try:
            state = await self._changed(experiment, change)
        except StoreDown:
            if seen is not None:
                self._put_back(experiment, run, seen)
            raise
        if state.owner == self.owner and (untold := [*state.untold()]):
            for decision in untold:
                await self._tell(Told(experiment, model, decision))

            def told(state: RolloutState) -> None:
                state.told = max(state.told, untold[-1].number)

            await self._changed(experiment, told)

    def _put_back(self, experiment: str, run: int, seen: Seen) -> None:
        later_run, later = self._seen.get(experiment, (run, None))
        if later is None:
            self._seen[experiment] = (run, seen)
        elif later_run == run:
            later.merge(seen)

    async def _changed(self, experiment: str, change: Callable[[RolloutState], Any]) -> RolloutState:
        """By ``change``, tried again where another's came in between. Raises ``StoreDown``, ``Unreadable``."""
        for _ in range(_ATTEMPTS):
            before = await self.states.get(experiment)
            state = self._latest(experiment, before)
            change(state)
            after = state.encode()
            if after == before or await self.states.swap(experiment, before, after):
                self._known[experiment] = state
                return state
        raise StoreDown("the state of a roll-out keeps changing")

    def _latest(self, experiment: str, document: bytes | None) -> RolloutState:
        """The common state; where that is gone, or behind (another store than a moment ago), what is known of it.

        Raises ``Unreadable``.
        """
        known = self._known.get(experiment)
        if document is None:
            return known.copy() if known is not None else RolloutState()
        try:
            state = RolloutState.decode(document)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            place = self.states.place(experiment)
            raise Unreadable(
                f"the roll-out '{experiment}' stays where it is: its state, {place}, cannot be read "
                f"({type(error).__name__}: {error}). If a newer release wrote it, bring this gateway up to that; else "
                "delete it, and the roll-out goes on from what running workers know, or begins anew"
            ) from error
        return known.copy() if known is not None and state.decided < known.decided else state
