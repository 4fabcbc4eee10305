"""Who is next, who may leave for it, and how long that takes: read off the models, without a change to any.

A loaded model that is asked keeps its memory for a turn, several times as long as its load took, however many wait for
others. So swaps take a bounded share of the time, at any rate of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from engine.fleet.budget import Budget
from engine.fleet.model import Model, State
from engine.fleet.pace import Pace
from engine.fleet.room import Action, Change, Holding, make_room


class Turns:
    def __init__(
        self, models: Mapping[str, Model], budget: Budget, pace: Pace, clock: Callable[[], float]
    ) -> None:
        self._models = models
        self._budget = budget
        self._pace = pace
        self._clock = clock

    def queue(self) -> list[Model]:
        """Models that are to be loaded: those with requests by their first one's arrival, then those kept loaded."""
        asked = [model for model in self._models.values() if model.waiting and not model.grants]
        asked.sort(key=lambda model: model.waiting[0].arrived)
        kept = [
            model
            for model in self._models.values()
            if (model.entry.terms.pinned or model.entry.terms.min)
            and model.state in (State.UNLOADED, State.LOADING)
            and not (model.waiting or model.stopped)
            # Who is kept loaded only while there is room waits for it; who is pinned gets it.
            and (model.entry.terms.pinned or model.state is State.LOADING or self._budget.fits_now(model))
        ]
        return asked + kept

    def position(self, model: Model) -> int:
        """1: it is being loaded, or is next."""
        queue = self.queue()
        return queue.index(model) + 1 if model in queue else 1

    def expected_wait(self, model: Model) -> float:
        """Seconds until it serves, as far as that can be said."""
        now, wait = self._clock(), 0.0
        coming = model.grants or model.state in (State.LOADING, State.WAKING)
        if not coming and not self._budget.fits_now(model):
            # Those that are being asked give way when their turns are over.
            turns = [self._asked_for(other, now) for other in self._models.values() if self._is_asked(other)]
            wait += min(turns, default=0.0)
        for ahead in self.queue():
            if ahead is model:
                break
            wait += ahead.expected_load + self._turn(ahead)
        return wait + model.expected_load + max(0.0, model.retry_at - now)

    def room_for(self, model: Model) -> list[Change] | None:
        """What has to happen first; ``None``: it must wait for those who are asked."""
        leaving = self._may_leave_for(model)
        leaving.sort(key=lambda other: (other.state is not State.SLEEPING, other.last_used))
        return make_room(
            self._budget.missing(model), self._budget.free(model), [_holding(other) for other in leaving]
        )

    def over_for(self, model: Model) -> Iterator[Model]:
        """Those whose turns are over, as many as ``model`` needs beside those who may leave anyway."""
        now, missing = self._clock(), self._budget.missing(model)
        free = self._budget.free(model) + sum(other.counted for other in self._may_leave_for(model))
        others = [
            other
            for other in self._models.values()
            if other is not model
            and not other.entry.terms.pinned
            and other.state in (State.LOADED, State.SLEEPING)
        ]
        for other in sorted(others, key=lambda other: other.loaded_at):
            if free >= missing:
                return
            if not self._may_leave(other, now) and self._turn_left(other, now) <= 0:
                free += other.counted
                yield other

    def idle(self) -> Change | None:
        """Who is to leave next as nobody asks for it, or as too much is taken."""
        now, pressed = self._clock(), self._budget.is_pressed()
        idle = [
            model
            for model in self._models.values()
            if not (model.in_flight or model.waiting or model.entry.terms.pinned or model.entry.terms.min)
            and model.state in (State.LOADED, State.SLEEPING)
        ]
        for model in sorted(idle, key=lambda model: model.last_used):
            terms, since = model.entry.terms, now - model.last_used
            must = pressed and since > self._pace.linger
            if since >= terms.unload_after or (must and model.state is State.SLEEPING):
                return Change(model.name, Action.UNLOAD)
            if model.state is State.LOADED and (since >= terms.sleep_after or must):
                return Change(model.name, Action.SLEEP)
        return None

    def _may_leave_for(self, model: Model) -> list[Model]:
        now = self._clock()
        return [
            other for other in self._models.values() if other is not model and self._may_leave(other, now)
        ]

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


def _holding(model: Model) -> Holding:
    sleeps = model.state is State.LOADED and model.entry.terms.sleep_level > 0
    return Holding(model.name, model.counted, model.asleep_bytes if sleeps else None)
