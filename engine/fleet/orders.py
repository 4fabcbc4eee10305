"""An operator's orders that a model leaves: they go before requests that wait."""

from __future__ import annotations

import asyncio

from engine.errors import EngineError
from engine.fleet.model import Model, State
from engine.fleet.room import Action, Change


class Order:
    def __init__(self, model: Model, action: Action) -> None:
        self.model = model
        self.action = action
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_done(self) -> bool:
        state = self.model.state
        return state is State.UNLOADED or (self.action is Action.SLEEP and state is State.SLEEPING)


class Orders:
    def __init__(self, changed: asyncio.Event) -> None:
        """``changed`` is set when one comes."""
        self._open: list[Order] = []
        self._changed = changed

    async def carry_out(self, model: Model, action: Action) -> None:
        """Returns when it has been done. Meanwhile the model takes no new requests, and ends those it has."""
        order = Order(model, action)
        self._open.append(order)
        model.ordered += 1
        self._changed.set()
        try:
            await order.ended
        finally:
            self._open.remove(order)
            model.ordered -= 1
            self._changed.set()

    def next(self) -> Change | None:
        """What can be done now, the first order first; those that are done end."""
        for order in self._open:
            if order.ended.done():
                continue
            if order.is_done:
                order.ended.set_result(None)
            elif order.model.state in (State.LOADED, State.SLEEPING) and not order.model.in_flight:
                return Change(order.model.name, order.action)
        return None

    def refuse(self, error: EngineError) -> None:
        for order in self._open:
            if not order.ended.done():
                order.ended.set_exception(error)
