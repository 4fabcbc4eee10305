"""The time limits of one upstream answer."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from gateway.policy.schema import Timeouts

AFTER_THE_END = 0.25
"""Seconds to wait for a server to close an answer whose end mark has been read, so that its connection can be kept."""


class UpstreamTimeouts:
    """Bounds every wait for an upstream: to the first token, between events, and for the whole answer.

    Enter it around each wait; ``TimeoutError`` comes out when the nearest limit has passed. Time between waits is
    the client's, who may read slowly: it counts towards the whole only. A server that thinks for minutes may show
    that it is alive (``alive``): the limits to the first token and between events begin anew then, the one to the
    whole does not. An answer that is to come ``at_once``, not as a stream, has its first token with its last, so that
    the limit to the first means nothing to it. The caller's ``deadline``, on ``time.perf_counter``'s clock, is a limit
    to the whole like the total.

    It is ``asyncio.timeout`` in all but its cost: once the answer has begun one timer serves many waits, and is
    set anew when it rings too early, not each time that a token comes.
    """

    is_over = False
    _begun = False
    _timer: asyncio.TimerHandle | None = None
    _rings = 0.0
    _waiting: asyncio.Task[object] | None = None
    _late = False

    def __init__(self, limits: Timeouts, *, at_once: bool = False, deadline: float | None = None) -> None:
        self.limits = limits
        self._deadline = deadline
        self._loop = loop = asyncio.get_running_loop()
        self._now = now = loop.time
        left = limits.total
        if deadline is not None:
            left = min(left, deadline - time.perf_counter())
        self._end = now() + left
        self._limit = self._patience = limits.total if at_once else limits.first_token

    def progress(self) -> None:
        """Something of the answer has come."""
        self._begun = True
        self._limit = self._patience = self.limits.idle

    def went_on(self) -> None:
        """A piece of an answer that has begun came and has gone on its way: within a wait, the one for the next one
        begins. It ends no sooner than the one before, so that the timer can stay as it is."""
        self._entered = self._now()

    def alive(self) -> None:
        """Something has come that is no part of the answer: a comment, an empty line, a ping, half an event."""
        self._patience = self._limit

    def refused(self) -> None:
        """The answer is an error, whose body gets less time than an answer."""
        self._patience = min(self._patience, self.limits.idle)

    def ended(self) -> None:
        """The answer is complete, only its connection is still open."""
        self.is_over = True
        self._patience = AFTER_THE_END

    @property
    def past_deadline(self) -> bool:
        """The limit that has passed is the caller's own."""
        return self._deadline is not None and time.perf_counter() >= self._deadline

    def reason(self) -> str:
        """Which limit has passed, as it follows the server's name."""
        if self._now() >= self._end:
            return f"did not finish within {self.limits.total:g} s"
        if self._begun:
            return f"stalled for {self.limits.idle:g} s in the middle of its answer"
        return f"sent nothing within {self.limits.first_token:g} s"

    def __enter__(self) -> None:
        self._entered = now = self._now()
        due = now + self._patience
        if due > self._end:
            due = self._end
        self._waiting = task = asyncio.current_task(self._loop)
        if task is None:
            raise RuntimeError("a clock bounds the waits of a task")
        self._cancelling = task.cancelling()
        if self._timer is None:
            self._rings = due
            self._timer = self._loop.call_at(due, self._ring)
        elif self._rings > due:
            self._set(due)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._waiting = self._waiting, None
        # A wait can end without a sign of life, as the one for an answer's head does.
        self._patience -= self._now() - self._entered
        if (error is not None or not self._begun) and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._late and task is not None:
            self._late = False
            if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def close(self) -> None:
        """No more waits are to come. Without this a timer may stay behind until its time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, due: float) -> None:
        self.close()
        self._rings = due
        self._timer = self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._waiting is None:
            return
        due = min(self._entered + self._patience, self._end)
        if self._now() < due:
            self._set(due)
            return
        self._late = True
        self._waiting.cancel()
