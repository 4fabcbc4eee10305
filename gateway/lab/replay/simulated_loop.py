"""An event loop for millions of waits. Of asyncio's own, in virtual time, its handles and timers took half of a replay.

Its order is that of asyncio, and where two timers ring at once the one that was set first comes first.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from gateway.lab.policy_tests.virtual_time import VirtualLoop, VirtualTime


class Event:
    """A callback that is to run, as a handle and a timer of asyncio's are."""

    __slots__ = ("args", "callback", "context", "due")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        due: float,
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context if context is not None else contextvars.copy_context()
        self.due = due

    def cancel(self) -> None:
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.due


class SimulatedLoop(VirtualLoop):
    def __init__(self, clock: VirtualTime) -> None:
        self._passing = clock
        self._timers: list[tuple[float, int, Event]] = []
        self._made = 0
        super().__init__(clock)

    def time(self) -> float:
        return self._passing.now()

    # An ``Event`` has what users of handles call; asyncio's own classes would cost what this loop saves.
    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        event = Event(callback, args, context, when)
        self._made += 1
        heappush(self._timers, (when, self._made, event))
        return event

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_at(self._passing.now() + delay, callback, *args, context=context)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        event = Event(callback, args, context, 0.0)
        self._ready.append(event)  # type: ignore[attr-defined]  # BaseEventLoop's, which others append to
        return event

    def _run_once(self) -> None:
        """What ``BaseEventLoop.run_forever`` calls over and over: time passes where nothing else is to be done."""
        ready, timers = self._ready, self._timers  # type: ignore[attr-defined]
        if not ready:
            while timers and timers[0][2].callback is None:
                heappop(timers)
            if self.threads or not timers:
                # As the loop of tests waits for threads, or says that nothing will ever happen.
                self._process_events(self._selector.select(0.0 if timers else None))  # type: ignore[attr-defined]
            elif (wait := timers[0][0] - self._passing.now()) > 0:
                self._passing.pass_by(wait)
        now = self._passing.now()
        while timers and timers[0][0] <= now:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):
            event = ready.popleft()
            if event.__class__ is not Event:
                event._run()
            elif event.callback is not None:
                try:
                    event.context.run(event.callback, *event.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": "a callback failed", "exception": error})
