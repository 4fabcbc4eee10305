"""The HTTP process's end of the loop process: submit, stream, abort."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from engine import channel
from engine.config import EngineConfig
from engine.core.logprobs import TokenLogprobs
from engine.core.plan import RequestOutput
from engine.core.request import FinishReason, Sibling
from engine.core.sampling_params import SamplingParams
from engine.errors import (
    ContextLengthExceeded,
    DeadlineUnreachable,
    EngineDied,
    EngineError,
    GrammarFailed,
    InvalidRequest,
    ModelNotFound,
    OutOfMemory,
    QueueFull,
    StartupError,
)
from engine.messages import (
    Abort,
    AdapterDone,
    Failed,
    LoadAdapter,
    Outputs,
    Park,
    Ready,
    Refusal,
    Start,
    Step,
    Submit,
    UnloadAdapter,
    Unpark,
)

# The loop's tensors are large and short-lived. Left alone, malloc maps and unmaps memory for each of them, and the
# page faults cost a tenth of its speed. 32 MiB is the most that glibc takes everywhere.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}

_AHEAD = 2048
"""Tokens that a generation's reader may be behind, for all its sequences together, before nothing more is computed for
it: some seconds' worth, so that no reader who keeps up is ever waited for."""

_BITE = 256
"""Deltas that a reader gets at a time: those who come back after a while must not hold up all others while their
tokens are turned into text."""

_LEAVE = 2.0
"""Seconds that the loop process gets to leave by itself when it is closed."""


@dataclass(slots=True)
class Delta:
    """New tokens of one of a generation's sequences."""

    index: int
    tokens: list[int]
    finish: FinishReason | None
    at: float
    """``time.monotonic()`` when they came."""
    logprobs: list[TokenLogprobs] | None = None
    """One for each of ``tokens``, where asked for."""
    cached: int = 0
    """With the first tokens: those of the prompt that were in the cache."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """With the first tokens, where asked for: one for each token of the prompt but the first."""


@dataclass(slots=True, eq=False)
class Generation:
    """The sequences that one caller asked for together. Iterate until all have finished, and close it in any case.

    Iterating yields what came since the last time: a slow reader gets larger pieces, not a queue. One who is
    ``_AHEAD`` tokens behind is parked: its sequences give up their seats and blocks until it has caught up.
    """

    _client: EngineClient
    _open: dict[int, int]
    """Request id → index of those that have not finished."""
    _deltas: list[Delta] = field(default_factory=list)
    _error: EngineError | None = None
    _waiter: asyncio.Future[None] | None = None
    _behind: int = 0
    """Tokens that have come and were not taken."""
    _parked: bool = False

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> list[Delta]:
        """Raises ``EngineError`` when a sequence was refused or the loop process died."""
        while not self._deltas:
            if self._error is not None:
                raise self._error
            if not self._open:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        deltas, self._deltas = self._deltas[:_BITE], self._deltas[_BITE:]
        self._behind -= sum(len(delta.tokens) for delta in deltas)
        if self._parked and self._behind < _AHEAD // 2:
            self._parked = False
            self._client._send(Unpark(list(self._open)))
        if self._deltas:
            # Whatever else is to be done comes first.
            await asyncio.sleep(0)
        return deltas

    def stop(self, index: int) -> None:
        """No more tokens of this sequence are wanted."""
        self._abort([request_id for request_id, other in self._open.items() if other == index])

    def close(self) -> None:
        """Aborts whatever has not finished."""
        self._abort(list(self._open))

    def _abort(self, request_ids: list[int]) -> None:
        for request_id in request_ids:
            del self._open[request_id]
        self._client._forget(request_ids)

    def _output(self, output: RequestOutput, at: float) -> None:
        index = self._open[output.request_id]
        self._deltas.append(
            Delta(
                index,
                output.tokens,
                output.finish,
                at,
                output.logprobs,
                output.cached,
                output.prompt_logprobs,
            )
        )
        self._behind += len(output.tokens)
        if output.finish is not None:
            del self._open[output.request_id]
        if self._behind > _AHEAD and self._open:
            # Each time: a sequence that had no token yet when the others were parked is so now.
            self._parked = True
            self._client._send(Park(list(self._open)))
        self._wake()

    def _fail(self, error: EngineError) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineClient(asyncio.Protocol):
    """Start it with ``EngineClient.start``; ``ready`` is set once the model is loaded."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._decoder = channel.Decoder()
        self._transport: asyncio.Transport | None = None
        self._ids = itertools.count(1)
        self._generations: dict[int, Generation] = {}
        self._adapters: dict[str, asyncio.Future[None]] = {}
        """Those that are being loaded or unloaded, by key."""
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        # Whoever stops while the model loads has no more interest in how that went.
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self._closing: EngineError | None = None
        self.died = asyncio.Event()
        """Set when the loop process is gone without having been asked to go."""
        self.last: Step | None = None
        self.on_step: Callable[[Step], None] = lambda step: None
        self.on_finish: Callable[[], None] = lambda: None
        """Called when a sequence has come to its end."""
        self.retry_after: Callable[[], float] = lambda: 1.0
        """Seconds that a refused caller should wait."""

    @classmethod
    async def start(cls, config: EngineConfig) -> EngineClient:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "engine.process", str(theirs.fileno())]
            # Its own working directory need not be ours, nor need this package be installed.
            path = os.pathsep.join(entry for entry in sys.path if entry)
            process = await asyncio.create_subprocess_exec(
                *command,
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, **_MALLOC, "PYTHONPATH": path},
            )
        client = cls(process)
        await asyncio.get_running_loop().create_unix_connection(lambda: client, sock=ours)
        client._send(Start(config))
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
        """Whether there is a generation for which steps are due: not if all readers are behind."""
        return any(not generation._parked for generation in set(self._generations.values()))

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
        """Higher ``priority`` goes first, ``weight`` keeps its prefix longer; ``deadline`` is a ``time.monotonic()``.
        Tenants share by weight. Blocks are found again by those of the same ``salt`` alone, but for those of the first
        ``shared`` tokens.

        Neighbours with the same prompt are computed once, and share its KV blocks.
        Raises ``EngineError`` if the loop process is gone.
        """
        if self._closing is not None:
            raise self._closing
        requests = {next(self._ids): index for index in range(len(sequences))}
        generation = Generation(self, requests)
        self._generations |= dict.fromkeys(requests, generation)
        now = time.monotonic()
        numbered = zip(requests, sequences, strict=True)
        for _, choices in groupby(numbered, key=lambda choice: id(choice[1][0])):
            (first, (prompt, params)), *others = choices
            siblings = [Sibling(other, its) for other, (_, its) in others]
            self._send(
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
        """``key`` is what requests name it by, and was never used before.

        Raises ``InvalidRequest`` if it cannot be used, ``EngineError`` if the loop process is gone.
        """
        await self._change_adapter(LoadAdapter(key, folder))

    async def unload_adapter(self, key: str) -> None:
        """New requests must not ask for it any more. Waits until those that use it have ended.

        Raises ``EngineError`` if the loop process is gone.
        """
        await self._change_adapter(UnloadAdapter(key))

    async def _change_adapter(self, message: LoadAdapter | UnloadAdapter) -> None:
        if self._closing is not None:
            raise self._closing
        done = asyncio.get_running_loop().create_future()
        self._adapters[message.key] = done
        self._send(message)
        # Who hangs up has asked nevertheless.
        await asyncio.shield(done)

    def fail_all(self, error: EngineError) -> None:
        """Ends every generation with ``error``, now and from now on."""
        self._closing = error
        for generation in set(self._generations.values()):
            generation._fail(error)
        for done in self._adapters.values():
            done.set_exception(error)
            done.exception()
        self._adapters.clear()

    def kill(self) -> None:
        """Ends a loop process that answers no more: everyone who waits is told, and ``died`` is set."""
        self._process.kill()

    async def close(self) -> None:
        """Ends the loop process, if need be by force."""
        if self._closing is None:
            self.fail_all(EngineDied("The engine is shutting down."))
        if self._transport is not None:
            self._transport.close()
        # While it loads a model it does not look at its socket, and there is nothing to lose.
        patience = _LEAVE if self._ready.done() else 0.0
        try:
            await asyncio.wait_for(self._process.wait(), patience)
        except TimeoutError:
            self._process.kill()
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
                case AdapterDone(key, wrong):
                    done = self._adapters.pop(key, None)
                    if done is not None and wrong is not None:
                        done.set_exception(InvalidRequest(wrong))
                        done.exception()
                    elif done is not None:
                        done.set_result(None)
                case Failed(reason):
                    self._ready.set_exception(StartupError(reason))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ready.done():
            self._ready.set_exception(StartupError("The loop process died while it loaded the model."))
        if self._closing is None:
            self.fail_all(EngineDied("The engine's loop process died; it is being restarted."))
            self.died.set()

    def _take(self, outputs: Outputs) -> None:
        now = time.monotonic()
        for output in outputs.requests:
            generation = self._generations.get(output.request_id)
            if generation is None:
                continue
            if output.finish is not None:
                del self._generations[output.request_id]
                self.on_finish()
            generation._output(output, now)
        self.last = outputs.step
        self.on_step(outputs.step)
        for refusal in outputs.refusals:
            generation = self._generations.pop(refusal.request_id, None)
            if generation is not None:
                generation._fail(self._error(refusal))

    def _error(self, refusal: Refusal) -> EngineError:
        if refusal.error == "ContextLengthExceeded":
            prompt_tokens, max_tokens, limit = refusal.figures
            return ContextLengthExceeded(prompt_tokens, max_tokens, limit=limit)
        if refusal.error == "DeadlineUnreachable":
            needed, allowed = refusal.figures
            return DeadlineUnreachable(needed / 1000, allowed / 1000)
        if refusal.error == "GrammarFailed":
            return GrammarFailed(refusal.reason)
        if refusal.error == "OutOfMemory":
            return OutOfMemory(refusal.reason)
        if refusal.error == "ModelNotFound":
            return ModelNotFound("The adapter was unloaded before the request began.", param="model")
        return QueueFull(refusal.figures[0], retry_after=self.retry_after())

    def _forget(self, request_ids: Iterable[int]) -> None:
        known = [request_id for request_id in request_ids if self._generations.pop(request_id, None)]
        if known and self._closing is None:
            self._send(Abort(known))

    def _send(self, message: Any) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(channel.encode(message))
