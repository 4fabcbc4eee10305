"""The HTTP process's side of the engine process: submit, stream, abort."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from engine import channel
from engine.config import EngineConfig
from engine.core.request import Sibling
from engine.core.sampling_params import SamplingParams
from engine.errors import (
    EngineDied,
    EngineError,
    InvalidRequest,
    StartupError,
)
from engine.generation import Generation
from engine.messages import (
    Abort,
    AdapterDone,
    Failed,
    LoadAdapter,
    Outputs,
    Ready,
    Start,
    Step,
    Submit,
    UnloadAdapter,
)
from engine.refusals import to_error

# The engine process has large, short-lived tensors. By default malloc maps and unmaps memory for each of them; the
# page faults cost a tenth of its speed. 32 MiB is the most that glibc takes everywhere.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}

_EXIT_TIMEOUT = 2.0
"""Seconds that the engine process gets to leave by itself when it is closed."""


class EngineClient(asyncio.Protocol):
    """Start it with ``EngineClient.start``; ``ready`` is set once the model is loaded."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._decoder = channel.MessageDecoder()
        self._transport: asyncio.Transport | None = None
        self._ids = itertools.count(1)
        self._generations: dict[int, Generation] = {}
        self._adapters: dict[str, asyncio.Future[None]] = {}
        """Those that are being loaded or unloaded, by key."""
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        # After a shutdown during the load nobody awaits the result.
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self._closing: EngineError | None = None
        self.died = asyncio.Event()
        """Set when the engine process has exited without having been asked to."""
        self.last: Step | None = None
        self.on_step: Callable[[Step], None] = lambda step: None
        self.on_finish: Callable[[], None] = lambda: None
        """Called when a sequence has finished."""
        self.retry_after: Callable[[], float] = lambda: 1.0
        """Seconds that a refused caller should wait."""

    @classmethod
    async def start(cls, config: EngineConfig) -> EngineClient:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "engine.process", str(theirs.fileno())]
            # The package need not be installed, nor importable from the working directory.
            path = os.pathsep.join(entry for entry in sys.path if entry)
            process = await asyncio.create_subprocess_exec(
                *command,
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, **_MALLOC, "PYTHONPATH": path},
            )
        client = cls(process)
        await asyncio.get_running_loop().create_unix_connection(lambda: client, sock=ours)
        client.send(Start(config))
        return client

    async def ready(self) -> Ready:
        """Waits until the model is loaded. Raises ``StartupError`` if it does not load."""
        return await asyncio.shield(self._ready)

    @property
    def pid(self) -> int:
        return self._process.pid

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
    ) -> Generation:
        """Parameters are those of ``messages.Submit``; ``deadline`` is a ``time.monotonic()``.

        Adjacent sequences with the same prompt (the same list) are computed once, and share its KV blocks.
        Raises ``EngineError`` if the engine process has exited.
        """
        if self._closing is not None:
            raise self._closing
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
                )
            )
        return generation

    async def load_adapter(self, key: str, folder: Path) -> None:
        """``key`` identifies it in requests, and was never used before.

        Raises ``InvalidRequest`` if it cannot be used, ``EngineError`` if the engine process has exited.
        """
        await self._change_adapter(LoadAdapter(key, folder))

    async def unload_adapter(self, key: str) -> None:
        """No new request may use it. Waits until those that use it have ended.

        Raises ``EngineError`` if the engine process has exited.
        """
        await self._change_adapter(UnloadAdapter(key))

    async def _change_adapter(self, message: LoadAdapter | UnloadAdapter) -> None:
        if self._closing is not None:
            raise self._closing
        done = asyncio.get_running_loop().create_future()
        self._adapters[message.key] = done
        self.send(message)
        # The change goes on even if the caller disconnects.
        await asyncio.shield(done)

    def fail_all(self, error: EngineError) -> None:
        """Ends every generation with ``error``, those submitted later included."""
        self._closing = error
        for generation in set(self._generations.values()):
            generation.fail(error)
        for done in self._adapters.values():
            done.set_exception(error)
            done.exception()
        self._adapters.clear()

    def kill(self) -> None:
        """Ends an engine process that does not respond: all generations fail, and ``died`` is set."""
        with suppress(ProcessLookupError):  # it has ended by itself
            self._process.kill()

    async def close(self) -> None:
        """Ends the engine process, by force if necessary."""
        if self._closing is None:
            self.fail_all(EngineDied("The engine is shutting down."))
        if self._transport is not None:
            self._transport.close()
        # While it loads a model it does not read its socket, and there is nothing to lose.
        timeout = _EXIT_TIMEOUT if self._ready.done() else 0.0
        try:
            await asyncio.wait_for(self._process.wait(), timeout)
        except TimeoutError:
            self.kill()
            await self._process.wait()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            match message:
                case Outputs():
                    self._take(message)
                case Ready():
                    self._ready.set_result(message)
                case AdapterDone(key, error):
                    done = self._adapters.pop(key, None)
                    if done is not None and error is not None:
                        done.set_exception(InvalidRequest(error))
                        done.exception()
                    elif done is not None:
                        done.set_result(None)
                case Failed(reason):
                    self._ready.set_exception(StartupError(reason))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ready.done():
            self._ready.set_exception(StartupError("The engine process died while it loaded the model."))
        if self._closing is None:
            self.fail_all(EngineDied("The engine process died; it is being restarted."))
            self.died.set()

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

    def send(self, message: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(channel.encode(message))
