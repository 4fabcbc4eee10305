"""A change of models, one at a time: one is loaded or woken after others made room, put to sleep, or unloaded."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from engine.errors import ModelNotLoaded, StartupError, Unavailable
from engine.fleet.exchange import MemberGone
from engine.fleet.member import Member
from engine.fleet.model import SURVIVES, Model, State
from engine.fleet.pace import Pace
from engine.fleet.room import Action, Change
from engine.fleet.roster import ModelEntry

log = logging.getLogger("engine.fleet")

Start = Callable[[ModelEntry, int], Coroutine[Any, Any, Member]]
"""Starts an entry's processes; the number is new each time."""


class Changes:
    def __init__(
        self,
        models: Mapping[str, Model],
        start: Start,
        pace: Pace,
        clock: Callable[[], float],
        changed: asyncio.Event,
    ) -> None:
        """``changed`` is set when one has ended, or a model's processes have."""
        self.swaps = 0
        """How often a model gave way to another."""
        self._models = models
        self._start = start
        self._pace = pace
        self._clock = clock
        self._changed = changed
        self._numbers = itertools.count(1)
        self._running: asyncio.Task[None] | None = None

    @property
    def running(self) -> asyncio.Task[None] | None:
        """The one that is under way."""
        if self._running is not None and self._running.done():
            self._running = None
        return self._running

    def bring(self, model: Model, after: Sequence[Change]) -> None:
        """Begins to load or wake it, once ``after`` has happened."""
        self._begin(self._bring(model, after))

    def put_out(self, model: Model, action: Action) -> None:
        """Begins to put it to sleep, or to unload it."""
        self._begin(self._put_out(model, action))

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._running = asyncio.create_task(self._guarded(work))
        self._running.add_done_callback(lambda _: self._changed.set())

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Whatever goes wrong, no model stays on its way for ever."""
        try:
            await work
        except Exception as error:
            log.exception("a change of models failed")
            for model in self._models.values():
                if model.state in (State.LOADING, State.WAKING, State.LEAVING):
                    await self._failed(model, f"{type(error).__name__}: {error}")

    async def _bring(self, model: Model, after: Sequence[Change]) -> None:
        for name, action in after:
            other = self._models[name]
            if other.in_flight:  # a request came between
                return
            self.swaps += 1
            await self._put_out(other, action)
        began, how = self._clock(), "waking" if model.state is State.SLEEPING else "cold"
        try:
            if model.state is State.SLEEPING and model.member is not None:
                model.state = State.WAKING
                await model.member.wake()
            else:
                await self._load(model)
        except (StartupError, Unavailable, MemberGone) as error:
            await self._failed(model, str(error) or "its process died")
            return
        if model.member is None:
            await self._failed(model, "its process died as soon as it was loaded")
            return
        model.took(how, self._clock() - began)
        model.failed_loads, model.last_error = 0, ""
        model.loads += 1
        model.loaded_at = model.last_used = self._clock()
        model.yielding = False
        model.state = State.LOADED
        log.info("%s is loaded, %s, in %.1f s", model.name, how, self._clock() - began)

    async def _load(self, model: Model) -> None:
        """Raises ``StartupError``, ``MemberGone``."""
        model.state = State.LOADING
        model.generation += 1
        member = await self._start(model.entry, next(self._numbers))
        model.member = member
        try:
            await member.ready()
        except StartupError:
            model.member = None
            raise
        member.watch(lambda dead: self._died(model, dead))
        state = await member.state()
        model.held = await member.taken()
        model.max_model_len = state.get("max_model_len")
        taken = state.get("memory_bytes", {})
        if state.get("device") == "cpu":
            # Nothing of the cache is written yet.
            model.need = model.held + int(taken.get("kv_cache", 0)) + int(taken.get("states", 0))
            model.asleep_bytes = max(0, model.held - int(taken.get("weights", 0)))

    async def _put_out(self, model: Model, action: Action) -> None:
        member = model.member
        if member is None or model.in_flight:  # a request came between
            return
        asleep = model.state is State.SLEEPING
        model.state = State.LEAVING
        level = model.entry.terms.sleep_level
        if action is Action.SLEEP and level and not asleep:
            try:
                await member.sleep(level)
                held = await member.taken()
                if model.member is not member:
                    raise MemberGone("its process died")
                model.held = model.asleep_bytes = held
                model.state = State.SLEEPING
                log.info("%s sleeps, and takes %.0f MiB", model.name, model.held / 2**20)
                return
            except (Unavailable, MemberGone) as error:
                log.warning("%s cannot be put to sleep, and is unloaded: %s", model.name, error)
        await member.stop()
        model.member, model.held = None, 0
        model.state = State.UNLOADED
        model.yielding = False
        log.info("%s is unloaded", model.name)

    async def _failed(self, model: Model, why: str) -> None:
        """A load, or a wake-up. Who waits lives through the first."""
        member, model.member = model.member, None
        model.state, model.held = State.UNLOADED, 0
        model.failed_loads += 1
        model.last_error = why
        backoff = min(self._pace.longest_backoff, self._pace.backoff * 2 ** (model.failed_loads - 1))
        model.retry_at = self._clock() + backoff
        log.error("%s did not load, next try in %.0f s: %s", model.name, backoff, why)
        for ticket in list(model.waiting):
            ticket.failures += 1
            if ticket.failures > SURVIVES:
                model.waiting.remove(ticket)
                ticket.refuse(ModelNotLoaded(model.name, why, backoff))
        if member is not None:
            await member.kill()

    def _died(self, model: Model, member: Member) -> None:
        if model.member is not member:
            return
        log.error("the processes of %s died (status %s)", model.name, member.exit_status)
        model.member, model.held = None, 0
        model.deaths += 1
        if model.state in (State.LOADED, State.SLEEPING, State.LEAVING):
            model.state = State.UNLOADED
        model.yielding = False
        self._changed.set()
