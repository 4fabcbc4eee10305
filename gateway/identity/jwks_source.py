"""Where an issuer's keys come from, a URL or a file, followed by a task of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx

from gateway.identity.jwks import MAX_BYTES, JwksError, KeySet, VerifyingKey, parse
from gateway.policy.schema import Algorithm

WAIT = 2.0
"""Seconds a request waits, at most, for keys that it needs."""
PAUSE = 10.0
"""Seconds between two looks that unknown keys set off: anyone can make up key ids."""
LOOK_AT_FILE = 1.0
FETCH_TIMEOUT = 10.0
FIRST_RETRY = 1.0

Read = Callable[[], Awaitable[bytes | None]]
"""The document, or None where it is known to be what it was."""

log = logging.getLogger(__name__)


class JwksSource:
    """The last good set of keys. It stays when a later read fails."""

    def __init__(
        self,
        location: str,
        read: Read,
        *,
        every: float,
        keys: KeySet | None = None,
        on_change: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins to follow at once: an event loop must be running. ``keys`` is a set to begin with."""
        self.keys = keys
        self.location = location
        self._read = read
        self._every = every
        self._on_change = on_change
        self._clock = clock
        self._document: bytes | None = None
        self._error: str | None = None
        self._failures = 0
        self._looking = True
        self._looked = asyncio.Event()
        """Set, and replaced, after each look."""
        self._wanted = asyncio.Event()
        self._last_wanted = float("-inf")
        self._task = asyncio.create_task(self._follow(), name=f"JWKS {location}")

    async def find(self, kid: str | None, algorithm: Algorithm) -> VerifyingKey | None:
        """The key that a token names. An unknown one sets off a new look, now and then, and waits for it briefly."""
        if self.keys is not None and (key := self.keys.find(kid, algorithm)) is not None:
            return key
        if not self._looking:
            now = self._clock()
            if now - self._last_wanted < PAUSE:
                return None
            self._last_wanted = now
            self._looking = True
            self._wanted.set()
        looked = self._looked
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT):
                await looked.wait()
        return self.keys.find(kid, algorithm) if self.keys is not None else None

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            self._wanted.clear()
            self._looking = True
            try:
                await self._look()
            finally:
                self._looking = False
                looked, self._looked = self._looked, asyncio.Event()
                looked.set()
            pause = self._every
            if self._failures:
                pause = min(pause, FIRST_RETRY * 2 ** min(self._failures - 1, 16))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wanted.wait()

    async def _look(self) -> None:
        try:
            document = await self._read()
            if document is None:
                return  # so is what there is to say about it
            if document != self._document:
                keys = parse(document)
                self._document = document
                self.keys = keys
                self._on_change()
        except (JwksError, OSError, TimeoutError, httpx.HTTPError) as error:
            self._failed(str(error) or type(error).__name__)
        except Exception as error:
            log.exception("reading the JWKS '%s' failed", self.location)
            self._failed(type(error).__name__)
        else:
            if self._error is not None:
                log.info("the JWKS '%s' can be read again", self.location)
            self._error = None
            self._failures = 0

    def _failed(self, why: str) -> None:
        self._failures += 1
        if why != self._error:
            kept = "tokens are refused meanwhile" if self.keys is None else "the last good keys stay in force"
            log.error("the JWKS '%s' cannot be used, %s: %s", self.location, kept, why)
        self._error = why


def from_url(transport: httpx.AsyncBaseTransport, url: str) -> Read:
    """A GET that takes no longer than ``FETCH_TIMEOUT``, follows no redirect and reads no more than is allowed."""

    async def read() -> bytes:
        request = httpx.Request(
            "GET",
            url,
            headers={"accept": "application/json", "accept-encoding": "identity", "user-agent": "tollgate"},
            extensions={"timeout": {"connect": 5.0, "read": 5.0}},
        )
        async with asyncio.timeout(FETCH_TIMEOUT):
            response = await transport.handle_async_request(request)
            try:
                if response.status_code != 200:
                    raise JwksError(f"its server answered with status {response.status_code}")
                document = bytearray()
                async for part in response.aiter_raw():
                    document += part
                    if len(document) > MAX_BYTES:
                        raise JwksError(f"is larger than {MAX_BYTES} bytes")
            finally:
                await response.aclose()
        return bytes(document)

    return read


def from_file(path: Path) -> Read:
    """Reads anew only what has changed, by name, inode, size and time."""
    seen: tuple[int, int, int] | None = None

    def look() -> bytes | None:
        nonlocal seen
        known, seen = seen, None
        stat = path.stat()
        state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if state == known:
            seen = known
            return None
        with path.open("rb") as file:
            document = file.read(MAX_BYTES + 1)
        # A file system's clock is coarse: what was just written is looked at once more.
        if abs(time.time_ns() - stat.st_mtime_ns) > 2e9:
            seen = state
        return document

    async def read() -> bytes | None:
        return await asyncio.to_thread(look)

    return read
