"""Health check: proven by a decoded token, not by a listening socket."""

from __future__ import annotations

import asyncio
import time

from engine.client import EngineClient
from engine.core.sampling_params import SamplingParams
from engine.errors import EngineStalled
from engine.messages import Step


class Health:
    """A step that ran the model is the proof, whichever request it was for. Where none is recent, a token is decoded.

    A busy engine is thus healthy though its queue is full, and being probed costs it nothing.
    """

    def __init__(self, client: EngineClient, *, timeout: float = 3.5, fresh: float = 1.0) -> None:
        """A step that never ends shows after ``fresh + timeout`` seconds at most."""
        self._client = client
        self._timeout = timeout
        self._fresh = fresh
        self._last_step = -float("inf")
        self._stepped = asyncio.Event()
        self._probe: asyncio.Task[None] | None = None

    def observe(self, step: Step) -> None:
        if step.sequences:
            self._last_step = time.monotonic()
            self._stepped.set()

    async def check(self) -> None:
        """Raises ``EngineStalled`` if no step is done in time, and ``EngineDied`` if the engine process has exited."""
        if time.monotonic() - self._last_step <= self._fresh and not self._client.died.is_set():
            return
        # Concurrent checks share one probe.
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._decode())
            self._probe.add_done_callback(lambda probe: probe.cancelled() or probe.exception())
        await asyncio.shield(self._probe)

    async def _decode(self) -> None:
        self._stepped.clear()
        generation = self._client.submit([([0], SamplingParams(max_tokens=1, temperature=0))])
        try:
            # If the queue is full, the probe is refused; any other request's step proves the same.
            async with asyncio.timeout(self._timeout):
                await self._stepped.wait()
        except TimeoutError:
            raise EngineStalled(f"The engine did not decode a token within {self._timeout:g} s.") from None
        finally:
            generation.close()
