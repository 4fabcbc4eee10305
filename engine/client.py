"""The HTTP process's side of the engine process: submit, stream, abort."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from engine.begun_process import BegunProcess
from engine.core.request import Sibling
from engine.core.sampling_params import SamplingParams
from engine.engine_process import EngineProcess
from engine.errors import Asleep, EngineError, InvalidRequest
from engine.generation import Generation
from engine.messages import (
    Abort,
    AdapterDone,
    LoadAdapter,
    Outputs,
    Ready,
    Sleep,
    SleepDone,
    Step,
    Submit,
    UnloadAdapter,
    Wake,
)
from engine.refusals import to_error


class EngineClient(EngineProcess[Ready]):
    """Start it with ``EngineClient.start``; ``ready`` is set once the model is loaded."""

    def __init__(self, process: BegunProcess) -> None:
        super().__init__(process)
        self._ids = itertools.count(1)
        self._generations: dict[int, Generation] = {}
        self._adapters: dict[str, asyncio.Future[str]] = {}
        """Those that are being loaded or unloaded, by key."""
        self._sleeping: asyncio.Future[None] | None = None
        """Of who waits until it sleeps, or is awake."""
        self.last: Step | None = None
        self.on_step: Callable[[Step], None] = lambda step: None
        self.on_finish: Callable[[], None] = lambda: None
        """Called when a sequence has finished."""
        self.retry_after: Callable[[], float] = lambda: 1.0
        """Seconds that a refused caller should wait."""

    @property
    def open_requests(self) -> int:
        """Generations that have not ended."""
        return len(set(self._generations.values()))

    @property
    def computing(self) -> bool:
        """Whether steps are due for some generation: not if all are parked."""
        return any(not generation.parked for generation in set(self._generations.values()))

    @property
    def adapters_in_use(self) -> tuple[set[str], set[str]]:
        """Keys of the LoRA adapters of running and of waiting requests."""
        used: tuple[set[str], set[str]] = (set(), set())
        for generation in set(self._generations.values()):
            if generation.adapter is not None:
                used[not generation.scheduled].add(generation.adapter)
        return used

    def submit(
        self,
        sequences: Sequence[tuple[list[int], SamplingParams]],
        *,
        priority: int = 0,
        weight: float = 1.0,
        deadline: float | None = None,
        adapter: str | None = None,
        tenant: str = "",
        salt: bytes = b"",
        shared: int = 0,
        pin: float = 0.0,
        prefill_at: str = "",
    ) -> Generation:
        """Parameters are those of ``messages.Submit``; ``deadline`` is a ``time.monotonic()``.

        Adjacent sequences with the same prompt (the same list) are computed once, and share its KV blocks.
        Raises ``EngineError`` if the engine process has exited.
        """
        if self._closing is not None:
            raise self._closing
        if self.asleep:
            raise Asleep("The model sleeps: POST /wake_up first.")
        requests = {next(self._ids): index for index in range(len(sequences))}
        leaders: dict[int, int] = {}
        now = time.monotonic()
        generation = Generation(self, requests, leaders, now, adapter)
        self._generations |= dict.fromkeys(requests, generation)
        numbered = zip(requests, sequences, strict=True)
        for _, choices in groupby(numbered, key=lambda choice: id(choice[1][0])):
            (first, (prompt, params)), *others = choices
            siblings = [Sibling(other, own) for other, (_, own) in others]
            leaders |= dict.fromkeys((first, *(sibling.id for sibling in siblings)), first)
            self.send(
                Submit(
                    first,
                    prompt,
                    params,
                    now,
                    priority,
                    deadline,
                    weight,
                    adapter,
                    siblings,
                    tenant,
                    salt,
                    shared,
                    pin,
                    prefill_at,
                )
            )
        return generation

    async def sleep(self, level: int) -> None:
        """``level``: as in ``messages.Sleep``. Raises ``Asleep`` where requests are open or it cannot,
        ``EngineError`` if the engine process has exited."""
        if self._sleeping is not None:
            raise Asleep("The model is being put to sleep, or woken.")
        if self._generations:
            raise Asleep("Requests are open: a model sleeps once they have ended.")
        before, self.asleep = self.asleep, level  # at once: nothing may be sent behind it
        try:
            if before != level:
                await self._change_sleep(Wake() if before else Sleep(level))
                if before:
                    await self._change_sleep(Sleep(level))
        except Asleep:
            self.asleep = 0
            raise

    async def wake(self) -> None:
        """Raises as ``sleep`` does."""
        if self._sleeping is not None:
            raise Asleep("The model is being put to sleep, or woken.")
        if self.asleep:
            await self._change_sleep(Wake())
            self.asleep = 0

    async def _change_sleep(self, message: Sleep | Wake) -> None:
        if self._closing is not None:
            raise self._closing
        self._sleeping = asyncio.get_running_loop().create_future()
        self.send(message)
        try:
            await asyncio.shield(self._sleeping)
        finally:
            self._sleeping = None

    async def load_adapter(self, key: str, folder: Path) -> str:
        """``key`` identifies it in requests, and was never used before. Returns the digest of its files.

        Raises ``InvalidRequest`` if it cannot be used, ``EngineError`` if the engine process has exited.
        """
        return await self._change_adapter(LoadAdapter(key, folder))

    async def unload_adapter(self, key: str) -> None:
        """No new request may use it. Waits until those that use it have ended.

        Raises ``EngineError`` if the engine process has exited.
        """
        await self._change_adapter(UnloadAdapter(key))

    async def _change_adapter(self, message: LoadAdapter | UnloadAdapter) -> str:
        if self._closing is not None:
            raise self._closing
        if self.asleep:
            raise Asleep("The model sleeps: POST /wake_up first.")
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._adapters[message.key] = done
        self.send(message)
        # The change goes on even if the caller disconnects.
        return await asyncio.shield(done)

    def end_requests(self, error: EngineError) -> None:
        for generation in set(self._generations.values()):
            generation.fail(error)
        if self._sleeping is not None and not self._sleeping.done():
            self._sleeping.set_exception(error)
        for done in self._adapters.values():
            done.set_exception(error)
            done.exception()
        self._adapters.clear()

    def take(self, message: Any) -> None:
        match message:
            case Outputs():
                self._take(message)
            case Ready():
                self._ready.set_result(message)
            case SleepDone(error):
                if self._sleeping is None or self._sleeping.done():
                    return
                if error is None:
                    self._sleeping.set_result(None)
                else:
                    self._sleeping.set_exception(Asleep(error))
            case AdapterDone(key, error, digest):
                done = self._adapters.pop(key, None)
                if done is not None and error is not None:
                    done.set_exception(InvalidRequest(error))
                    done.exception()
                elif done is not None:
                    done.set_result(digest)

    def _take(self, outputs: Outputs) -> None:
        now = time.monotonic()
        for request_id, queued in outputs.step.queued:
            if (generation := self._generations.get(request_id)) is not None:
                generation.schedule(request_id, queued)
        for output in outputs.requests:
            generation = self._generations.get(output.request_id)
            if generation is None:
                continue
            if output.finish is not None:
                del self._generations[output.request_id]
                self.on_finish()
            generation.add(output, now)
        self.last = outputs.step
        self.on_step(outputs.step)
        for refusal in outputs.refusals:
            generation = self._generations.pop(refusal.request_id, None)
            if generation is not None:
                generation.fail(to_error(refusal, retry_after=self.retry_after()))

    # generation.Connection

    def abort(self, request_ids: Sequence[int]) -> None:
        known = [request_id for request_id in request_ids if self._generations.pop(request_id, None)]
        if known and self._closing is None:
            self.send(Abort(known))
