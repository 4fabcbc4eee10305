"""Health check: proven by a step of the model, not by a listening socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

from engine.client import EngineClient
from engine.core.sampling_params import SamplingParams
from engine.engine_process import EngineProcess
from engine.errors import EngineDied, EngineStalled
from engine.server.listening import first


class Probe(Protocol):
    """A request that proves that the model runs."""

    def close(self) -> None: ...


class ModelStep(Protocol):
    @property
    def sequences(self) -> int: ...


def decode_token(client: EngineClient) -> Probe:
    return client.submit([([0], SamplingParams(max_tokens=1, temperature=0))])


class Health:
    """A step that ran the model is the proof, whichever request it was for. Where none is recent, ``probe`` asks for
    one: a token to decode, a text to embed.

    A busy engine is thus healthy though its queue is full, and being probed costs it nothing.
    """

    def __init__(
        self,
        client: EngineProcess[Any],
        probe: Callable[[], Probe],
        *,
        timeout: float = 3.5,
        fresh: float = 1.0,
    ) -> None:
        """A step that never ends shows after ``fresh + timeout`` seconds at most."""
        self._client = client
        self._begin = probe
        self._timeout = timeout
        self._fresh = fresh
        self._last_step = -float("inf")
        self._stepped = asyncio.Event()
        self._probe: asyncio.Task[None] | None = None

    def observe(self, step: ModelStep) -> None:
        if step.sequences:
            self._last_step = time.monotonic()
            self._stepped.set()

    async def check(self) -> None:
        """Raises ``EngineStalled`` if no step is done in time, and ``EngineDied`` if the engine process has exited."""
        if time.monotonic() - self._last_step <= self._fresh and not self._client.died.is_set():
            return
        if self._client.asleep and not self._client.died.is_set():
            return  # by order
        # Concurrent checks share one probe.
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._prove())
            self._probe.add_done_callback(lambda probe: probe.cancelled() or probe.exception())
        await asyncio.shield(self._probe)

    async def _prove(self) -> None:
        self._stepped.clear()
        request = self._begin()
        try:
            # If the queue is full, the probe is refused; any other request's step proves the same.
            async with asyncio.timeout(self._timeout):
                await first(self._stepped.wait(), self._client.died.wait())
        except TimeoutError:
            raise EngineStalled(f"The engine did no step within {self._timeout:g} s.") from None
        finally:
            request.close()
        if self._client.died.is_set():
            raise EngineDied("The engine process died; it is being restarted.")
