"""An issuer's keys from a URL or a file, refreshed by a task."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx

from gateway.backoff import Backoff
from gateway.errors import AuthUnavailable
from gateway.identity.fetch import NotFetched, fetch
from gateway.identity.jwks import MAX_BYTES, JwksError, KeySet, VerifyingKey, parse
from gateway.policy.schema import Algorithm

WAIT = 2.0
"""Seconds a request waits, at most, for keys that it needs."""
PAUSE = 10.0
"""Seconds between two refreshes because of unknown key ids: anyone can make up key ids."""
CHECK_FILE_EVERY = 1.0
FIRST_RETRY = 1.0

Read = Callable[[], Awaitable[bytes | None]]
"""The document, or None where it is unchanged."""

log = logging.getLogger(__name__)


class JwksSource:
    """The last good set of keys. When later reads fail it stays valid for ``stale_if_error``."""

    def __init__(
        self,
        location: str,
        read: Read,
        *,
        every: float,
        stale_if_error: float = float("inf"),
        before: JwksSource | None = None,
        on_change: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins to refresh at once: an event loop must be running.

        ``every`` is the seconds between two reads (infinitely many: only unknown keys have them read anew),
        ``stale_if_error`` those for which the last good keys stay valid
        when reading fails. It begins with the keys and the age of ``before``'s.
        """
        self.keys: KeySet | None = before.keys if before is not None else None
        self.location = location
        self._stale_if_error = stale_if_error
        self._as_of: float = before._as_of if before is not None else float("-inf")
        """When the keys were last known to be the issuer's."""
        self._next_refresh = float("-inf")
        self._read = read
        self._every = every
        self._backoff = Backoff(FIRST_RETRY, most=every)
        self._on_change = on_change
        self._clock = clock
        self._document: bytes | None = None
        self._error: str | None = None
        self._failures = 0
        self._refreshing = True
        self._refreshed = asyncio.Event()
        """Set, and replaced, after each refresh."""
        self._wanted = asyncio.Event()
        self._last_wanted = float("-inf")
        self._task = asyncio.create_task(self._follow(), name=f"JWKS {location}")

    async def find(
        self, kid: str | None, algorithm: Algorithm, *, wait: float | None = None
    ) -> VerifyingKey | None:
        """The key that a token names; None where the issuer has none such.

        An unknown one starts a refresh, at most every ``PAUSE`` seconds, and waits for it, briefly or for ``wait`` s.
        Raises ``AuthUnavailable`` where the issuer's keys cannot be read.
        """
        if self.keys is not None and (key := self.keys.find(kid, algorithm)) is not None:
            return key
        if not self._refreshing:
            now = self._clock()
            if now - self._last_wanted < PAUSE:
                self._check_readable()
                return None
            self._last_wanted = now
            self._refreshing = True
            self._wanted.set()
        refreshed = self._refreshed
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT if wait is None else wait):
                await refreshed.wait()
        key = self.keys.find(kid, algorithm) if self.keys is not None else None
        if key is None:
            self._check_readable()
        return key

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _check_readable(self) -> None:
        if self.keys is None or self._failures or self._refreshing:
            raise AuthUnavailable(
                "The public keys of this token's issuer cannot be read at the moment. Try again later.",
                retry_after=max(1.0, self._next_refresh - self._clock()),
            )

    async def _follow(self) -> None:
        while True:
            self._wanted.clear()
            self._refreshing = True
            try:
                await self._refresh()
            finally:
                self._refreshing = False
                pause = self._pause()
                self._next_refresh = self._clock() + pause
                refreshed, self._refreshed = self._refreshed, asyncio.Event()
                refreshed.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wanted.wait()

    def _pause(self) -> float:
        """Seconds until the next refresh; keys that are too old are dropped here."""
        if not self._failures:
            return self._every
        pause = self._backoff.after(self._failures)
        if self.keys is None:
            return pause
        left = self._as_of + self._stale_if_error - self._clock()
        if left > 0:
            return min(pause, left)
        log.error("the JWKS '%s' could not be read for too long: its tokens are refused", self.location)
        self.keys = self._document = None
        self._on_change()
        return pause

    async def _refresh(self) -> None:
        try:
            document = await self._read()
            if document is None and self._failures:
                return  # the last document is still invalid
            if document is not None and document != self._document:
                keys = parse(document)
                self._document = document
                self.keys = keys
                self._on_change()
        except (JwksError, NotFetched, OSError, TimeoutError, httpx.HTTPError) as error:
            self._failed(str(error) or type(error).__name__)
        except Exception as error:
            log.exception("reading the JWKS '%s' failed", self.location)
            self._failed(type(error).__name__)
        else:
            if self._error is not None:
                log.info("the JWKS '%s' can be read again", self.location)
            self._error = None
            self._failures = 0
            self._as_of = self._clock()

    def _failed(self, why: str) -> None:
        self._failures += 1
        if why != self._error:
            kept = (
                "tokens are refused meanwhile"
                if self.keys is None
                else "the last good keys stay in force for now"
            )
            log.error("the JWKS '%s' cannot be used, %s: %s", self.location, kept, why)
        self._error = why


def from_url(transport: httpx.AsyncBaseTransport, url: str) -> Read:
    return partial(fetch, transport, url)


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
        # A file system's clock is coarse: what was just written is refreshed at once more.
        if abs(time.time_ns() - stat.st_mtime_ns) > 2e9:
            seen = state
        return document

    async def read() -> bytes | None:
        return await asyncio.to_thread(look)

    return read
