"""What all models' processes may take together, what they take, and what fits beside it. All in bytes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from engine.errors import ModelNeverFits
from engine.fleet import memory
from engine.fleet.model import Model, State
from engine.fleet.room import never_fits

_LOW = 0.95
"""Share of the budget down to which idle models leave once more than the budget is taken."""


class Budget:
    def __init__(self, models: Mapping[str, Model], total: int) -> None:
        """``total`` is what all processes may take, this one included."""
        self.total = total
        self.own = 0
        """Of this process, as last measured."""
        self._models = models
        self._pressed = False

    async def measure(self) -> None:
        self.own = await asyncio.to_thread(memory.taken, [os.getpid()])
        for model in self._models.values():
            if model.member is not None and model.state in (State.LOADED, State.SLEEPING):
                member = model.member
                held = await member.taken()
                if model.member is member:
                    model.held = held

    @property
    def taken(self) -> int:
        return self.own + sum(model.held for model in self._models.values())

    def is_pressed(self) -> bool:
        """Whether more than the budget is taken, and since then not yet ``_LOW`` of it again."""
        self._pressed = self.taken > (self.total * _LOW if self._pressed else self.total)
        return self._pressed

    def missing(self, model: Model) -> int:
        """Beside those that it has."""
        return model.need - (model.counted if model.state is State.SLEEPING else 0)

    def free(self, besides: Model) -> int:
        return (
            self.total
            - self.own
            - sum(model.counted for model in self._models.values() if model is not besides)
            - (besides.counted if besides.state is State.SLEEPING else 0)
        )

    def fits_now(self, model: Model) -> bool:
        return self.missing(model) <= self.free(model)

    def never_fits(self, model: Model) -> ModelNeverFits | None:
        """Why it has no place even where only those that are pinned remain."""
        pinned = [other for other in self._models.values() if other.entry.terms.pinned and other is not model]
        left = self.total - self.own
        if not never_fits(model.need, left, sum(max(other.need, other.held) for other in pinned)):
            return None
        return ModelNeverFits(model.name, model.need, left, [other.name for other in pinned])
