"""One receiver of callbacks: what it is sent, how often, and what becomes of what it does not take.

Messages are signed as Standard Webhooks 1.0 has it
(https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md).
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

import httpx

from gateway.observe.metrics import Metrics
from gateway.policy.schema.callbacks import Callback, CallbackEvent, key_of

log = logging.getLogger(__name__)

DELAYS = (1.0, 5.0, 30.0, 120.0, 600.0, 1800.0)
"""Seconds before each further attempt, give or take a fifth."""
LONGEST_WAIT = 3600.0
"""Seconds that a receiver's ``retry-after`` may ask for."""
MAX_WAITING = 1_000
"""Messages; further ones are lost."""
AT_ONCE = 4
"""Attempts."""
_GONE = 410


@dataclass(frozen=True, slots=True)
class Message:
    """``body`` is what is sent, under an id that is the same for all who tell of the same event."""

    id: str
    kind: CallbackEvent
    body: bytes
    share: float | None = None
    """Of a budget."""


class CallbackEndpoint:
    """Messages are sent side by side, so that one that is tried again holds up no other."""

    def __init__(
        self,
        config: Callback,
        transport: httpx.AsyncBaseTransport,
        metrics: Metrics,
        *,
        delays: Sequence[float] = DELAYS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self._keys = [key_of(one) for one in (config.secret, config.previous_secret) if one is not None]
        self._transport = transport
        self._metrics = metrics
        self._delays = tuple(delays)
        self._clock = clock
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._gone = False
        self._minute = 0
        self._sent: dict[str, int] = {}
        """In this minute, by kind."""

    def wants(self, message: Message) -> bool:
        config = self.config
        return message.kind in config.events and (message.share is None or message.share in config.budget_at)

    def add(self, message: Message) -> None:
        """Send it in the background."""
        if self._gone:
            return
        if self._closing.is_set() or len(self._tasks) >= MAX_WAITING:
            self._count(message, "lost")
            return
        minute = int(self._clock() // 60)
        if minute != self._minute:
            self._minute = minute
            self._sent.clear()
        sent = self._sent[message.kind] = self._sent.get(message.kind, 0) + 1
        if sent > self.config.per_minute:
            self._count(message, "limited")
            return
        task = asyncio.get_running_loop().create_task(self._deliver(message), name="callback")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self, seconds: float) -> None:
        """What waits for another attempt has it now; what is not taken within ``seconds`` is lost."""
        self._closing.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, message: Message) -> None:
        why = "it was not sent"
        try:
            for delay in (*self._delays, None):
                is_last = delay is None or self._closing.is_set()
                async with self._slots:
                    why, wait = await self._attempt(message)
                if not why:
                    self._count(message, "delivered")
                    return
                if is_last or self._gone or delay is None:
                    break
                await self._pause(max(wait, delay * random.uniform(0.8, 1.2)))
                self._count(message, "retried")
        except asyncio.CancelledError:
            self._count(message, "lost")
            raise
        self._count(message, "failed")
        log.error("callback '%s' (%s) was not delivered: %s", message.id, message.kind, why)

    async def _pause(self, seconds: float) -> None:
        """Less where the gateway stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def _attempt(self, message: Message) -> tuple[str, float]:
        """Why it was not taken, empty where it was, and the seconds to wait that the receiver asks for."""
        timeout = self.config.timeout
        request = httpx.Request(
            "POST",
            self.config.url,
            headers={
                "content-type": "application/json",
                "accept-encoding": "identity",
                "user-agent": "tollgate",
                **signed_headers(self._keys, message.id, int(self._clock()), message.body),
            },
            content=message.body,
            extensions={"timeout": {"connect": timeout, "read": timeout}},
        )
        try:
            async with asyncio.timeout(timeout):
                response = await self._transport.handle_async_request(request)
                status, asked = response.status_code, response.headers.get("retry-after", "")
                await response.aclose()  # what it says beside that is of no use
        except TimeoutError:
            return f"no answer within {timeout:g} s", 0.0
        except httpx.HTTPError as error:
            return f"it cannot be reached ({type(error).__name__})", 0.0
        if 200 <= status < 300:
            return "", 0.0
        if status == _GONE:
            self._gone = True
            log.error(
                "'%s' wants no more callbacks (410); edit the policy to send it some again", self._where
            )
        return f"status {status}", min(float(asked), LONGEST_WAIT) if asked.isdecimal() else 0.0

    @property
    def _where(self) -> str:
        """Its host alone: some receivers have their secret in the path."""
        return httpx.URL(self.config.url).host

    def _count(self, message: Message, outcome: str) -> None:
        self._metrics.callbacks.labels(message.kind, outcome).inc()


def signed_headers(keys: Iterable[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that go with ``body``; ``timestamp`` (Unix, seconds) is the attempt's, and one of ``keys`` verifies
    it."""
    content = b".".join((message_id.encode(), str(timestamp).encode(), body))
    signatures = (base64.b64encode(hmac.digest(key, content, sha256)).decode() for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
