"""The loop of steps: plan, submit, collect, commit; where the device computes on its own, one step ahead.

    plan N+1 → submit N+1 → collect N → commit N → sample N+1 → plan N+2 → …

While the device computes step N, step N+1 is planned and launched behind it, with the tokens that N samples taken on
the device. When N is done, the device goes on at once; meanwhile its tokens come to the host and are committed, then
the sampling of N+1 is launched, to which grammars and penalties are bound. So a step takes as long as the longer of
the two, not as both. A request that turns out to have ended in N has computed a token too many in N+1.

With draft tokens N+1 is planned as if all of N's were accepted. How many are, and what is proposed after them, stays on
the device: it begins N+1 so many tokens earlier, and the plan is put right when N is committed.

In a pipeline of stages as many steps are in flight, each with other requests: what one samples is sampled when it
comes out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.core.plan import Plan, RequestOutput, SamplerOutput
from engine.core.scheduler import Scheduler
from engine.errors import OutOfMemory


class StepRunner(Protocol):
    """``engine.worker.runner.Runner`` documents each method."""

    def submit(self, plan: Plan, after: Any = None) -> Any: ...

    def sample(self, step: Any, dropped: Collection[int] = ()) -> None: ...

    def drafts(self, step: Any) -> Mapping[int, int]: ...

    def collect(self, step: Any) -> SamplerOutput: ...


@dataclass(slots=True)
class Landed:
    """A step that is done."""

    plan: Plan
    outputs: list[RequestOutput] = field(default_factory=list)
    seconds: float = 0.0
    """That it took, those not counted in which the step before it was not done."""
    failed: dict[int, str] = field(default_factory=dict)
    """Requests whose answers could not go on, and why. They have left the scheduler; ``outputs`` has none of them."""
    error: OutOfMemory | None = None
    """Set if the step was abandoned: it had no effect."""


@dataclass(slots=True)
class _Flight:
    plan: Plan
    step: Any
    began: float


class StepLoop:
    def __init__(
        self,
        scheduler: Scheduler,
        runner: StepRunner,
        *,
        ahead: bool,
        plan: Callable[[], Plan] | None = None,
        stages: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ahead``: whether a step may be launched before the results of the one before are known.
        ``plan``: makes the next plan; ``None``: ``scheduler.schedule``. ``stages``: of a pipeline."""
        self._scheduler = scheduler
        self._runner = runner
        self._ahead = ahead or stages > 1
        self._piped = stages > 1
        self._depth = max(2, stages)
        """Steps in flight at most."""
        self._plan = plan or scheduler.schedule
        self._clock = clock
        self._flights: deque[_Flight] = deque()
        self._short_of_memory = False
        """Whether a step did not fit beside the one in flight: it is planned again when it has the device to itself."""
        self._abandoned: Landed | None = None
        """To be returned by the next call."""
        self._landed = 0.0

    @property
    def in_flight(self) -> int:
        """Steps whose results are yet to come."""
        return len(self._flights)

    def step(self) -> Landed | None:
        """Waits for the next step that is done. ``None``: nothing could be planned."""
        if self._abandoned is not None:
            abandoned, self._abandoned = self._abandoned, None
            return abandoned
        if not self._flights:
            self._short_of_memory = False
            abandoned = self._launch()
            if abandoned is not None or not self._flights:
                return abandoned
        while self._may_launch():
            before = len(self._flights)
            self._short_of_memory = self._launch() is not None
            if len(self._flights) == before:
                break
        return self._land()

    def _may_launch(self) -> bool:
        """Whether another step may follow those in flight."""
        return (
            self._ahead
            and len(self._flights) < self._depth
            and not self._short_of_memory
            and not self._scheduler.idle
            and self._scheduler.can_run_ahead
        )

    def _launch(self) -> Landed | None:
        """Plans and submits a step, if there is anything to compute. Returns it if it was abandoned."""
        began = self._clock()
        after = self._flights[-1].step if self._flights else None
        if after is not None and self._scheduler.feeds_drafts:
            self._scheduler.expect(self._runner.drafts(after))
        plan = self._plan()
        if not plan.requests:
            return None
        try:
            step = self._runner.submit(plan, after)
        except OutOfMemory as error:
            self._scheduler.abandon(plan)
            return Landed(plan, error=error)
        if self._ahead:
            self._scheduler.advance(plan)
        self._flights.append(_Flight(plan, step, began))
        return None

    def _land(self) -> Landed:
        flight = self._flights.popleft()
        try:
            if self._piped:
                self._runner.sample(flight.step, self._scheduler.dropped(flight.plan))
            sampled = self._runner.collect(flight.step)
        except OutOfMemory as error:
            return self._retract(flight, error)
        record = self._scheduler.commit if self._ahead else self._scheduler.update
        outputs = record(flight.plan, sampled)
        if sampled.failed:
            # The tokens of this step violate their grammars.
            outputs = [output for output in outputs if output.request_id not in sampled.failed]
            for request_id in sampled.failed:
                self._scheduler.abort(request_id)
        if self._flights and not self._piped:
            following = self._flights[0]
            try:
                self._runner.sample(following.step, self._scheduler.dropped(following.plan))
            except OutOfMemory as error:
                self._abandoned = self._retract(following, error)
        now = self._clock()
        seconds, self._landed = now - max(flight.began, self._landed), now
        return Landed(flight.plan, outputs, seconds, sampled.failed)

    def _retract(self, flight: _Flight, error: OutOfMemory) -> Landed:
        """What followed was computed on top of nothing."""
        self._flights.clear()
        self._scheduler.abandon(flight.plan, launched=True)
        self._scheduler.retract()
        return Landed(flight.plan, error=error)
