"""The HTTP process's side of an engine process that serves an embedding model or a reranker."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

from engine.begun_process import BegunProcess
from engine.engine_process import EngineProcess
from engine.errors import EngineError
from engine.messages import Abort
from engine.pooling.messages import PoolingOutputs, PoolingReady, PoolingStep, SubmitTexts
from engine.refusals import to_error


class PoolingClient(EngineProcess[PoolingReady]):
    def __init__(self, process: BegunProcess) -> None:
        super().__init__(process)
        self._ids = itertools.count(1)
        self._open: dict[int, TextsRequest] = {}
        self.last: PoolingStep | None = None
        self.on_step: Callable[[PoolingStep], None] = lambda step: None
        self.on_finish: Callable[[], None] = lambda: None
        """Called when a request has all it asked for."""
        self.retry_after: Callable[[], float] = lambda: 1.0
        """Seconds that a refused caller should wait."""

    @property
    def open_requests(self) -> int:
        return len(self._open)

    @property
    def computing(self) -> bool:
        """Whether batches are due."""
        return bool(self._open)

    def submit(
        self,
        rows: list[list[int]],
        firsts: list[int] | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        size: int | None = None,
    ) -> TextsRequest:
        """Parameters are those of ``messages.SubmitTexts``; without ``firsts`` there are no pairs.

        Raises ``EngineError`` if the engine process has exited.
        """
        if self._closing is not None:
            raise self._closing
        request = TextsRequest(self, next(self._ids), len(rows))
        self._open[request.id] = request
        lengths = [len(row) for row in rows] if firsts is None else firsts
        now = time.monotonic()
        self.send(SubmitTexts(request.id, rows, lengths, now, priority, deadline, size))
        return request

    def abort(self, request_id: int) -> None:
        if self._open.pop(request_id, None) is not None and self._closing is None:
            self.send(Abort([request_id]))

    def end_requests(self, error: EngineError) -> None:
        for request in self._open.values():
            request.fail(error)
        self._open.clear()

    def take(self, message: Any) -> None:
        match message:
            case PoolingReady():
                self._ready.set_result(message)
            case PoolingOutputs(texts, refusals, step):
                for text in texts:
                    request = self._open.get(text.request_id)
                    if request is not None and request.add(text.index, text.values):
                        del self._open[text.request_id]
                        self.on_finish()
                self.last = step
                self.on_step(step)
                for refusal in refusals:
                    refused = self._open.pop(refusal.request_id, None)
                    if refused is not None:
                        refused.fail(to_error(refusal, retry_after=self.retry_after()))


class TextsRequest:
    """Await ``values``, and close it in any case."""

    def __init__(self, client: PoolingClient, number: int, count: int) -> None:
        self.id = number
        self._client = client
        self._values = [b""] * count
        self._left = count
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def values(self) -> list[bytes]:
        """Of each text, in order, little-endian float32. Raises ``EngineError``."""
        await self._done
        return self._values

    def add(self, index: int, values: bytes) -> bool:
        """Returns whether that was all."""
        self._values[index] = values
        self._left -= 1
        if not self._left and not self._done.done():
            self._done.set_result(None)
        return not self._left

    def fail(self, error: EngineError) -> None:
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # whoever asked may have left

    def close(self) -> None:
        """Nothing more is computed for it."""
        self._client.abort(self.id)
