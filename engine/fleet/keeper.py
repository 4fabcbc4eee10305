"""Decides which models are loaded: who waits first is served first, in a budget of memory, without thrashing.

One change at a time: a model is loaded, woken, put to sleep or unloaded, then the next is decided. A loaded model that
is asked keeps its memory for a turn, several times as long as its load took, however many wait for others; then it
takes no new requests, ends those it has, and gives way. So swaps take a bounded share of the time, at any rate of
requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import (
    ModelLoading,
    ModelNeverFits,
    ModelNotFound,
    ModelNotLoaded,
    StartupError,
    Unavailable,
)
from engine.fleet import memory
from engine.fleet.exchange import MemberGone
from engine.fleet.member import Member
from engine.fleet.model import Model, State, Ticket
from engine.fleet.room import Action, Change, Holding, make_room, never_fits
from engine.fleet.roster import ModelEntry, Roster

log = logging.getLogger("engine.fleet")

Start = Callable[[ModelEntry, int], Coroutine[Any, Any, Member]]
"""Starts an entry's processes; the number is new each time."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Times in seconds."""

    turn: float = 4.0
    """A turn is at least so many times as long as the load before it, and"""
    shortest_turn: float = 5.0
    longest_turn: float = 30.0
    """But no longer."""
    linger: float = 0.5
    """For which a model still counts as asked after its last answer: its next request may be on its way."""
    look: float = 1.0
    """Between looks at time-outs and memory."""
    backoff: float = 1.0
    """Before a load is tried again after one that failed; doubled by each that follows, up to"""
    longest_backoff: float = 30.0


_LOW = 0.95
"""Share of the budget down to which idle models leave once more than the budget is taken."""
_SURVIVES = 1
"""Failed loads, and deaths before anything was answered, that a request lives through."""


_GOING = 2.0
"""Seconds in which it is known whether a process that broke off a connection has ended."""


class Keeper:
    def __init__(
        self,
        roster: Roster,
        budget: int,
        needs: Mapping[str, int],
        start: Start,
        *,
        pace: Pace = Pace(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``needs``: predicted bytes of each model. ``budget`` is what all processes may take, this one included."""
        self.budget = budget
        self.max_load_wait = roster.max_load_wait
        self.models = {entry.name: Model(entry, needs[entry.name]) for entry in roster.models}
        self.own = 0
        """Bytes of this process, as last measured."""
        self.swaps = 0
        """How often a model gave way to another."""
        self._start = start
        self._clock = clock
        self._pace = pace
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()
        self._changing: asyncio.Task[None] | None = None
        self._deciding: asyncio.Task[None] | None = None
        self._closing = False
        self._pressed = False
        """More than the budget was taken, and not yet ``_LOW`` of it again."""
        for model in self.models.values():
            model.last_used = clock()

    def begin(self) -> None:
        self._deciding = asyncio.create_task(self._run())

    @property
    def alive(self) -> bool:
        """Whether it still decides."""
        return self._deciding is not None and not self._deciding.done()

    async def close(self) -> None:
        """Refuses who waits, and ends all processes."""
        if self._closing:
            return
        self._closing = True
        for task in (self._deciding, self._changing):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for model in self.models.values():
            self._refuse(model, Unavailable("The engine is shutting down."))
        members = [model.member for model in self.models.values() if model.member is not None]
        await asyncio.gather(*(member.stop() for member in members))

    def find(self, name: str) -> Model:
        """Raises ``ModelNotFound``."""
        if (model := self.models.get(name)) is None:
            names = ", ".join(f"'{known}'" for known in self.models)
            raise ModelNotFound(f"The model '{name}' does not exist here; {names} do.", param="model")
        return model

    # Requests

    def join(self, model: Model, deadline: float | None) -> Ticket:
        """A place at ``model``, to be given back by ``leave``. ``deadline`` is a ``time.monotonic()``.

        Raises ``ModelLoading`` where the model would come too late, ``ModelNeverFits`` where it cannot come.
        """
        ticket = Ticket(model, self._clock(), deadline)
        self._place(ticket)
        return ticket

    async def lost(self, ticket: Ticket, *, certain: bool) -> None:
        """The processes that served it are gone, as it seems, or are going, if that is ``certain``: returns when that
        is known, so that nobody is sent there again."""
        model, member = ticket.model, ticket.member
        if member is None:
            return
        if certain and model.member is member and model.state is State.LOADED:
            model.state = State.LEAVING
            member.end()  # it leaves by itself, but takes its time
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if model.state is State.LEAVING else _GOING):
                await member.ended.wait()

    def join_again(self, ticket: Ticket) -> bool:
        """After the processes died that served it, and nothing was answered yet: whether it may wait once more."""
        self.leave(ticket)
        ticket.failures += 1
        if ticket.failures > _SURVIVES or self._closing:
            return False
        ticket.member = ticket.error = None
        try:
            self._place(ticket)
        except Unavailable as error:
            ticket.refuse(error)
        return True

    def leave(self, ticket: Ticket) -> None:
        """It has ended, however."""
        model = ticket.model
        if ticket in model.waiting:
            model.waiting.remove(ticket)
        elif ticket.member is not None:
            ticket.member = None
            model.in_flight -= 1
            model.last_used = self._clock()
        self._changed.set()

    def position(self, ticket: Ticket) -> int:
        """1: its model is being loaded, or is next."""
        queue = self._queue()
        return queue.index(ticket.model) + 1 if ticket.model in queue else 1

    def expected_wait(self, model: Model) -> float:
        """Seconds until it serves, as far as that can be said."""
        now, wait = self._clock(), 0.0
        if not (model.grants or model.state in (State.LOADING, State.WAKING)) and not self._fits_now(model):
            # Those that are being asked give way when their turns are over.
            turns = [self._asked_for(other, now) for other in self.models.values() if self._is_asked(other)]
            wait += min(turns, default=0.0)
        for ahead in self._queue():
            if ahead is model:
                break
            wait += ahead.expected_load + self._turn(ahead)
        return wait + model.expected_load + max(0.0, model.retry_at - now)

    def _place(self, ticket: Ticket) -> None:
        model, deadline = ticket.model, ticket.deadline
        model.stopped = False
        if model.grants and model.member is not None:
            self._grant(ticket, model.member)
            return
        if self._never(model):
            raise self._never_error(model)
        wait = self.expected_wait(model)
        allowed = (
            self.max_load_wait if deadline is None else min(self.max_load_wait, deadline - self._clock())
        )
        if wait > allowed:
            raise ModelLoading(model.name, model.state.value, wait)
        ticket.cold = True
        model.waiting.append(ticket)
        self._changed.set()

    def _grant(self, ticket: Ticket, member: Member) -> None:
        model = ticket.model
        model.in_flight += 1
        model.last_used = self._clock()
        ticket.grant(member, model.generation)

    def _refuse(self, model: Model, error: Unavailable) -> None:
        waiting, model.waiting = model.waiting, []
        for ticket in waiting:
            ticket.refuse(error)

    # An operator's orders

    async def load(self, model: Model) -> None:
        """Waits until it is loaded. Raises ``Unavailable``."""
        ticket = self.join(model, None)
        try:
            while ticket.member is None and ticket.error is None:
                await ticket.change(60.0)
            if ticket.error is not None:
                raise ticket.error
        finally:
            self.leave(ticket)

    async def unload(self, model: Model) -> None:
        """Waits for its requests, then ends its processes. Its next request loads it again."""
        model.stopped = True
        await self._order(model, Action.UNLOAD)

    async def sleep(self, model: Model) -> None:
        """Waits for its requests, then puts it to sleep. Its next request wakes it."""
        await self._order(model, Action.SLEEP)

    async def _order(self, model: Model, action: Action) -> None:
        while True:
            while self._changing is not None:
                await asyncio.wait([self._changing])
                self._changing = (
                    None if self._changing is not None and self._changing.done() else self._changing
                )
            if model.state is State.UNLOADED or (action is Action.SLEEP and model.state is State.SLEEPING):
                model.yielding = False
                return
            if model.in_flight == 0:
                self._change(self._put_out(model, action))
                continue
            model.yielding = True
            await asyncio.sleep(0.05)

    # Decisions

    async def _run(self) -> None:
        looked = float("-inf")
        while not self._closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.look / 4):
                    await self._changed.wait()
            self._changed.clear()
            if self._clock() - looked >= self._pace.look:
                looked = self._clock()
                await self._measure()
            if self._changing is not None and self._changing.done():
                self._changing = None
            if self._changing is None:
                self._decide()

    def _decide(self) -> None:
        now = self._clock()
        for model in self.models.values():
            if model.grants and model.member is not None:
                for ticket in model.waiting:
                    self._grant(ticket, model.member)
                model.waiting = []
        queue = self._queue()
        if queue and queue[0].yielding and queue[0].state is State.LOADED:
            # Those for whom it was to give way have left.
            queue[0].yielding = False
            self._changed.set()
            return
        for model in queue:
            if model.retry_at > now or model.state is State.LEAVING:  # it dies: see ``lost``
                continue
            if self._never(model):
                self._refuse(model, self._never_error(model))
                continue
            if (changes := self._room_for(model, now)) is not None:
                self._change(self._bring(model, changes))
            return
        if not queue:
            for model in self.models.values():
                model.yielding = False
            self._let_idle_go(now)

    def _queue(self) -> list[Model]:
        """Models that are to be loaded: those with requests by their first one's arrival, then those kept loaded."""
        asked = [model for model in self.models.values() if model.waiting and not model.grants]
        asked.sort(key=lambda model: model.waiting[0].arrived)
        kept = [
            model
            for model in self.models.values()
            if (model.entry.terms.pinned or model.entry.terms.min)
            and model.state in (State.UNLOADED, State.LOADING)
            and not (model.waiting or model.stopped)
            # Who is kept loaded only while there is room waits for it; who is pinned gets it.
            and (model.entry.terms.pinned or model.state is State.LOADING or self._fits_now(model))
        ]
        return asked + kept

    def _room_for(self, model: Model, now: float) -> list[Change] | None:
        """What has to happen first; ``None``: it must wait for those who are asked."""
        leaving = [
            other for other in self.models.values() if other is not model and self._may_leave(other, now)
        ]
        leaving.sort(key=lambda other: (other.state is not State.SLEEPING, other.last_used))
        changes = make_room(
            self._missing(model), self._free(model), [self._holding(other) for other in leaving]
        )
        if changes is not None:
            return changes
        for other in self._by_turn(model, now):
            # It takes nothing new until the one that waits has its memory.
            other.yielding = True
        return None

    def _by_turn(self, model: Model, now: float) -> Iterable[Model]:
        """Those whose turns are over, as many as ``model`` needs beside those who may leave anyway."""
        others = [
            other
            for other in self.models.values()
            if other is not model
            and not other.entry.terms.pinned
            and other.state in (State.LOADED, State.SLEEPING)
        ]
        free = self._free(model) + sum(other.counted for other in others if self._may_leave(other, now))
        for other in sorted(others, key=lambda other: other.loaded_at):
            if free >= self._missing(model):
                return
            if not self._may_leave(other, now) and self._turn_left(other, now) <= 0:
                free += other.counted
                yield other

    def _may_leave(self, model: Model, now: float) -> bool:
        if model.entry.terms.pinned or model.state not in (State.LOADED, State.SLEEPING):
            return False
        if model.in_flight or (model.waiting and not model.yielding):
            return False
        return model.yielding or not self._is_asked(model) or self._turn_left(model, now) <= 0

    def _is_asked(self, model: Model) -> bool:
        """It has requests, or had one just now."""
        return model.state is State.LOADED and (
            bool(model.in_flight) or self._clock() - model.last_used < self._pace.linger
        )

    def _asked_for(self, model: Model, now: float) -> float:
        """Seconds for which it may keep its memory yet, as it is asked."""
        turn = self._turn_left(model, now)
        return turn if model.in_flight else min(turn, model.last_used + self._pace.linger - now)

    def _turn(self, model: Model) -> float:
        pace, load = self._pace, model.seconds.get("cold", model.seconds.get("waking", 0.0))
        return min(pace.longest_turn, max(pace.shortest_turn, pace.turn * load))

    def _turn_left(self, model: Model, now: float) -> float:
        return max(0.0, model.loaded_at + self._turn(model) - now)

    def _holding(self, model: Model) -> Holding:
        sleeps = model.state is State.LOADED and model.entry.terms.sleep_level > 0
        asleep = model.asleep_bytes if sleeps else None
        return Holding(model.name, model.counted, asleep)

    def _missing(self, model: Model) -> int:
        """Bytes beside those that it has."""
        return model.need - (model.counted if model.state is State.SLEEPING else 0)

    def _free(self, besides: Model) -> int:
        return (
            self.budget
            - self.own
            - sum(model.counted for model in self.models.values() if model is not besides)
            - (besides.counted if besides.state is State.SLEEPING else 0)
        )

    def _fits_now(self, model: Model) -> bool:
        return self._missing(model) <= self._free(model)

    def _never(self, model: Model) -> bool:
        pinned = sum(
            max(other.need, other.held)
            for other in self.models.values()
            if other is not model and other.entry.terms.pinned
        )
        return never_fits(model.need, self.budget - self.own, pinned)

    def _never_error(self, model: Model) -> ModelNeverFits:
        pinned = [
            other.name for other in self.models.values() if other.entry.terms.pinned and other is not model
        ]
        return ModelNeverFits(model.name, model.need, self.budget - self.own, pinned)

    def _let_idle_go(self, now: float) -> None:
        idle = sorted(
            (
                model
                for model in self.models.values()
                if not (model.in_flight or model.waiting or model.entry.terms.pinned or model.entry.terms.min)
                and model.state in (State.LOADED, State.SLEEPING)
            ),
            key=lambda model: model.last_used,
        )
        taken = self.own + sum(model.held for model in self.models.values())
        self._pressed = pressed = taken > (self.budget * _LOW if self._pressed else self.budget)
        for model in idle:
            terms, since = model.entry.terms, now - model.last_used
            if since >= terms.unload_after or (
                pressed and since > self._pace.linger and model.state is State.SLEEPING
            ):
                self._change(self._put_out(model, Action.UNLOAD))
                return
            if model.state is State.LOADED and (
                since >= terms.sleep_after or (pressed and since > self._pace.linger)
            ):
                self._change(self._put_out(model, Action.SLEEP))
                return

    # Changes

    def _change(self, work: Coroutine[Any, Any, None]) -> None:
        self._changing = asyncio.create_task(work)
        self._changing.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a change of models failed", exc_info=error)

    async def _bring(self, model: Model, changes: Sequence[Change]) -> None:
        """Loads or wakes it, after ``changes``."""
        for name, action in changes:
            other = self.models[name]
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
            if ticket.failures > _SURVIVES:
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

    async def _measure(self) -> None:
        self.own = await asyncio.to_thread(memory.taken, [os.getpid()])
        for model in self.models.values():
            if model.member is not None and model.state in (State.LOADED, State.SLEEPING):
                member = model.member
                held = await member.taken()
                if model.member is member:
                    model.held = held
