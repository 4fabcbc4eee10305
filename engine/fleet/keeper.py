"""Keeps models in a budget of memory: takes requests to them, and an operator's orders.

Which are loaded is decided (``decisions.py``) by turns (``turns.py``) and bytes (``budget.py``), one change at a time
(``changes.py``). A model whose turn is over while others wait takes no new requests, ends those it has, and gives way.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

from engine.errors import ModelLoading, ModelNotFound, ModelNotLoaded, Unavailable
from engine.fleet.budget import Budget
from engine.fleet.changes import Changes, Start
from engine.fleet.decisions import Decisions
from engine.fleet.exchange import MemberGone
from engine.fleet.model import SURVIVES, Model, State, Ticket
from engine.fleet.orders import Orders
from engine.fleet.pace import Pace
from engine.fleet.room import Action
from engine.fleet.roster import Roster
from engine.fleet.turns import Turns

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
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``needs``: predicted bytes of each model. ``budget`` is what all processes may take, this one included."""
        pace = pace or Pace()
        self.max_load_wait = roster.max_load_wait
        self.models = {entry.name: Model(entry, needs[entry.name]) for entry in roster.models}
        self.budget = Budget(self.models, budget)
        self._changed = asyncio.Event()
        self._turns = Turns(self.models, self.budget, pace, clock)
        self._changes = Changes(self.models, start, pace, clock, self._changed)
        self._orders = Orders(self._changed)
        self._decisions = Decisions(
            *(self.models, self.budget, self._turns, self._orders, self._changes),
            changed=self._changed,
            pace=pace,
            clock=clock,
        )
        self._clock = clock
        self._closing = False
        for model in self.models.values():
            model.last_used = clock()

    def begin(self) -> None:
        self._decisions.begin()

    @property
    def alive(self) -> bool:
        """Whether it still decides."""
        return self._decisions.alive

    @property
    def swaps(self) -> int:
        """How often a model gave way to another."""
        return self._changes.swaps

    async def close(self) -> None:
        """Refuses who waits, and ends all processes."""
        if self._closing:
            return
        self._closing = True
        await self._decisions.close()
        await self._changes.close()
        self._decisions.refuse(Unavailable("The engine is shutting down."))
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
        if ticket.failures > SURVIVES or self._closing:
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
        return self._turns.position(ticket.model)

    def expected_wait(self, model: Model) -> float:
        """Seconds until it serves, as far as that can be said."""
        return self._turns.expected_wait(model)

    def _place(self, ticket: Ticket) -> None:
        model, deadline = ticket.model, ticket.deadline
        model.stopped = False
        if model.grants:
            model.grant(ticket, self._clock())
            return
        if (never := self.budget.never_fits(model)) is not None:
            raise never
        wait = self.expected_wait(model)
        allowed = (
            self.max_load_wait if deadline is None else min(self.max_load_wait, deadline - self._clock())
        )
        if wait > allowed:
            raise ModelLoading(model.name, model.state.value, wait)
        ticket.cold = True
        model.waiting.append(ticket)
        self._changed.set()

    # An operator's orders

    async def load(self, model: Model) -> None:
        """Waits until it is loaded, and has computed something. Raises ``Unavailable``."""
        ticket = self.join(model, None)
        try:
            while True:
                while ticket.member is None and ticket.error is None:
                    await ticket.change(60.0)
                if ticket.member is None:
                    raise ticket.error or ModelNotLoaded(model.name, "it was refused", 1.0)
                try:
                    await ticket.member.prove()
                    if model.member is ticket.member:
                        return
                    raise MemberGone("it died thereafter")
                except MemberGone as gone:
                    await self.lost(ticket, certain=gone.certain)
                    if not self.join_again(ticket):
                        why = "its process died as soon as it was loaded"
                        raise ModelNotLoaded(model.name, why, max(1.0, self.expected_wait(model))) from None
        finally:
            self.leave(ticket)

    async def unload(self, model: Model) -> None:
        """Waits for its requests, then ends its processes. Its next request loads it again."""
        model.stopped = True
        await self._orders.carry_out(model, Action.UNLOAD)

    async def sleep(self, model: Model) -> None:
        """Waits for its requests, then puts it to sleep. Its next request wakes it."""
        await self._orders.carry_out(model, Action.SLEEP)
