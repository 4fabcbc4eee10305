"""The sequences that one caller asked for, as an async iterator of new tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.core.logprobs import TokenLogprobs
from engine.core.plan import RequestOutput
from engine.core.request import FinishReason
from engine.errors import EngineError
from engine.messages import Park, Unpark

_MAX_UNREAD = 2048
"""Tokens, of all its sequences together, that a generation's reader may be behind before its sequences are parked: some
seconds' worth, so that no reader that keeps up is ever waited for."""

_BATCH = 256
"""Deltas that a reader gets at a time: one that comes back after a while must not hold up all others while its tokens
are turned into text."""


class Connection(Protocol):
    """What a generation needs of the client."""

    def send(self, message: Any) -> None: ...

    def abort(self, request_ids: Sequence[int]) -> None: ...


@dataclass(slots=True)
class Delta:
    """New tokens of one of a generation's sequences."""

    index: int
    tokens: list[int]
    finish: FinishReason | None
    at: float
    """``time.monotonic()`` when they came."""
    logprobs: list[TokenLogprobs] | None = None
    """One for each of ``tokens``, where requested."""
    cached: int = 0
    """With the first tokens: how many of the prompt were in the cache."""
    queued: float = 0.0
    """With the first tokens: seconds from submission to the first step."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """With the first tokens, where requested: one for each token of the prompt but the first."""


@dataclass(slots=True, eq=False)
class Generation:
    """Iterate until all sequences have finished, and close it in any case.

    Iterating yields what came since the last time: a slow reader gets larger batches, not a queue. The sequences of one
    that is ``_MAX_UNREAD`` tokens behind are parked: they give up their slots and blocks until it has caught up.
    """

    _connection: Connection
    _open: dict[int, int]
    """Request id → index of those that have not finished."""
    _leaders: dict[int, int]
    """Request id → the request whose prompt it shares, of those without tokens."""
    submitted: float
    """``time.monotonic()``"""
    adapter: str | None = None
    parked: bool = False
    _queued: dict[int, float] = field(default_factory=dict)
    """By leader, once scheduled: seconds that it waited."""
    _deltas: list[Delta] = field(default_factory=list)
    _error: EngineError | None = None
    _waiter: asyncio.Future[None] | None = None
    _unread: int = 0
    """Tokens that have come and were not read."""

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> list[Delta]:
        """Raises ``EngineError`` when a sequence was refused or the engine process died."""
        while not self._deltas:
            if self._error is not None:
                raise self._error
            if not self._open:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        deltas, self._deltas = self._deltas[:_BATCH], self._deltas[_BATCH:]
        self._unread -= sum(len(delta.tokens) for delta in deltas)
        if self.parked and self._unread < _MAX_UNREAD // 2:
            self.parked = False
            self._connection.send(Unpark(list(self._open)))
        if self._deltas:
            # Other tasks come first.
            await asyncio.sleep(0)
        return deltas

    def stop(self, index: int) -> None:
        """No more tokens of this sequence are wanted."""
        self._abort([request_id for request_id, other in self._open.items() if other == index])

    def close(self) -> None:
        """Aborts whatever has not finished."""
        self._abort(list(self._open))

    @property
    def scheduled(self) -> bool:
        """Whether all its requests have been scheduled."""
        return all(leader in self._queued for leader in self._leaders.values())

    def schedule(self, request_id: int, queued: float) -> None:
        """For the client: a request, and those that share its prompt, began after ``queued`` seconds."""
        if request_id in self._leaders:
            self._queued[self._leaders[request_id]] = queued

    def add(self, output: RequestOutput, at: float) -> None:
        """For the client: new tokens, which came ``at`` (``time.monotonic()``)."""
        leader = self._leaders.pop(output.request_id, None)
        self._deltas.append(
            Delta(
                self._open[output.request_id],
                output.tokens,
                output.finish,
                at,
                output.logprobs,
                output.cached,
                0.0 if leader is None else self._queued.get(leader, 0.0),
                output.prompt_logprobs,
            )
        )
        self._unread += len(output.tokens)
        if output.finish is not None:
            del self._open[output.request_id]
        if self._unread > _MAX_UNREAD and self._open:
            # Each time: a sequence without any token when the others were parked is parked now.
            self.parked = True
            self._connection.send(Park(list(self._open)))
        self._wake()

    def fail(self, error: EngineError) -> None:
        """For the client: the reader gets ``error`` after what has come."""
        self._error = error
        self._wake()

    def _abort(self, request_ids: list[int]) -> None:
        for request_id in request_ids:
            del self._open[request_id]
            self._leaders.pop(request_id, None)
        self._connection.abort(request_ids)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
