"""The loop that decides which models are loaded: who waits first is served first, one change at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from engine.errors import EngineError, InternalError
from engine.fleet.budget import Budget
from engine.fleet.changes import Changes
from engine.fleet.model import Model, State
from engine.fleet.orders import Orders
from engine.fleet.pace import Pace
from engine.fleet.turns import Turns

log = logging.getLogger("engine.fleet")


class Decisions:
    """``budget``, ``turns`` and ``orders`` say what is to happen, ``changes`` makes it happen."""

    def __init__(
        self,
        models: Mapping[str, Model],
        budget: Budget,
        turns: Turns,
        orders: Orders,
        changes: Changes,
        *,
        changed: asyncio.Event,
        pace: Pace,
        clock: Callable[[], float],
    ) -> None:
        """``changed`` is set when there is something new to decide."""
        self._models = models
        self._budget = budget
        self._turns = turns
        self._orders = orders
        self._changes = changes
        self._changed = changed
        self._pace = pace
        self._clock = clock
        self._running: asyncio.Task[None] | None = None
        self._failing = False
        """The last one was none, by a mistake."""

    def begin(self) -> None:
        self._running = asyncio.create_task(self._run())

    @property
    def alive(self) -> bool:
        """Whether it still decides."""
        return self._running is not None and not (self._running.done() or self._failing)

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def refuse(self, error: EngineError) -> None:
        """All who wait."""
        self._orders.refuse(error)
        for model in self._models.values():
            model.refuse(error)

    async def _run(self) -> None:
        looked = float("-inf")
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.look / 4):
                    await self._changed.wait()
            self._changed.clear()
            try:
                if self._clock() - looked >= self._pace.look:
                    looked = self._clock()
                    await self._budget.measure()
                if self._changes.running is None:
                    self._decide()
                self._failing = False
            except Exception:
                log.exception("it could not be decided which models are loaded; who waits is refused")
                self._failing = True
                self.refuse(InternalError("The engine made a mistake; its log has the details."))
                await asyncio.sleep(self._pace.look)

    def _decide(self) -> None:
        for model in self._models.values():
            if model.grants:
                for ticket in model.waiting:
                    model.grant(ticket, self._clock())
                model.waiting = []
        if (change := self._orders.next()) is not None:
            self._changes.put_out(self._models[change.name], change.action)
            return
        queue = self._turns.queue()
        for model in queue:
            # One that leaves by order, or dies (see ``lost``), is loaded again when it has left.
            if model.ordered or model.retry_at > self._clock() or model.state is State.LEAVING:
                continue
            if model.state is State.LOADED:
                # Those for whom it was to give way have left.
                model.yielding = False
                self._changed.set()
            elif (never := self._budget.never_fits(model)) is not None:
                model.refuse(never)
                continue
            elif (changes := self._turns.room_for(model)) is not None:
                self._changes.bring(model, changes)
            else:
                for other in list(self._turns.over_for(model)):
                    # It takes nothing new until the one that waits has its memory.
                    other.yielding = True
            return
        if not queue:
            for model in self._models.values():
                model.yielding = False
            if (change := self._turns.idle()) is not None:
                self._changes.put_out(self._models[change.name], change.action)
