"""Following a policy folder: each good change is taken up within a second, a bad one leaves all as it was.

But for the keys: one that is taken out is refused within a second even while the folder cannot be loaded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from gateway.policy.folder import policy_files
from gateway.policy.loader import Loaded, load_policy
from gateway.policy.problems import PolicyError
from gateway.policy.revocation import revoked

log = logging.getLogger(__name__)

State = tuple[tuple[str, int, int, int, int], ...]
"""Name, inode, size, mtime and ctime (ns) of every policy file."""

_JUST_WRITTEN = 1.0
_RETRY = 5.0


class PolicyWatcher:
    """Polls a folder and calls ``on_change`` with each new policy, one call at a time.

    Polling sees everything: editors that rename, ConfigMaps that swap a symlink, network file systems. A change is
    read once two polls agree, so that a slow writer is not caught half-way. What cannot be loaded, or what
    ``on_change`` fails to take up, is logged once and the last good policy stays. ``on_revoked`` is then told the ids
    of that policy's keys that are no longer in the folder, all of them each time that they change.

    As an async context manager it loads the policy on entering; ``PolicyError`` then means there is none at all.
    """

    def __init__(
        self,
        directory: Path,
        on_change: Callable[[Loaded], Awaitable[None]],
        *,
        on_error: Callable[[], object] | None = None,
        on_revoked: Callable[[frozenset[str]], object] | None = None,
        fallback: Path | None = None,
        env: Mapping[str, str] = os.environ,
        interval: float = 0.2,
    ) -> None:
        """``fallback`` is a folder that is read in place of a broken one at the start, and only then."""
        self.generation = 0
        """How many policies have been taken up."""
        self.last_error: str | None = None
        """Why the folder as it is now is not in force; None while it is."""
        self.current: Loaded | None = None
        self._directory = directory
        self._on_change = on_change
        self._on_error = on_error
        self._on_revoked = on_revoked
        self._revoked: frozenset[str] = frozenset()
        self._fallback = fallback
        self._env = env
        self._interval = interval
        self._seen: State | None = None
        self._tried: State | None = None
        self._retry_at = float("inf")
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> PolicyWatcher:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Load, take up, and follow. Raises ``PolicyError``, or whatever ``on_change`` raises."""
        self._tried = self._seen = await asyncio.to_thread(self._state)
        try:
            loaded = await asyncio.to_thread(load_policy, self._directory, self._env)
        except PolicyError as error:
            if self._fallback is None or not self._fallback.is_dir():
                raise
            self._failed(error, "the policy that worked last is used")
            loaded = await asyncio.to_thread(load_policy, self._fallback, self._env)
        await self._take_up(loaded)
        if self.last_error is not None:
            await self._revoke()
        self._task = asyncio.create_task(self._follow(), name="policy watcher")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self._poll()
            except Exception:
                log.exception("following the policy folder failed; it is tried again")

    async def _poll(self) -> None:
        state = await asyncio.to_thread(self._state)
        settled, self._seen = state == self._seen, state
        due = state != self._tried or time.monotonic() >= self._retry_at
        if not settled or not due:
            return
        self._retry_at = float("inf")
        # A file system's clock is coarse: just after a write, another could hide behind the same times.
        if not _fresh(state):
            self._tried = state
        try:
            loaded = await asyncio.to_thread(load_policy, self._directory, self._env)
            if await asyncio.to_thread(self._state) != state:
                return  # written to while it was read
            if self.current is None or self.current.fingerprint != loaded.fingerprint:
                await self._take_up(loaded)
        except Exception as error:
            if not isinstance(error, PolicyError):
                self._retry_at = time.monotonic() + _RETRY
                self._tried = state
            self._failed(error, "the last good policy stays in force")
            await self._revoke()
        else:
            self.last_error = None
            if self._revoked:
                await self._revoke()  # what is back, without a change to the policy

    async def _take_up(self, loaded: Loaded) -> None:
        await self._on_change(loaded)
        self.current = loaded
        self._revoked = frozenset()
        self.generation += 1
        if self.generation > 1:
            log.info("policy generation %d is in force", self.generation)

    async def _revoke(self) -> None:
        """Tell of keys in force that are gone from a folder as it is now."""
        if self.current is None or self._on_revoked is None:
            return
        state = await asyncio.to_thread(self._state)
        policy, sources = self.current.policy, self.current.sources
        gone = await asyncio.to_thread(revoked, self._directory, self._env, policy.keys, sources)
        if await asyncio.to_thread(self._state) != state:
            return  # written to while it was read
        if gone is not None and gone != self._revoked:
            self._revoked = gone
            self._on_revoked(gone)
            if gone:
                log.warning("these keys are gone from the folder and refused: %s", ", ".join(sorted(gone)))

    def _failed(self, error: Exception, consequence: str) -> None:
        message = str(error) if isinstance(error, PolicyError) else f"{type(error).__name__}: {error}"
        if message != self.last_error:
            log.error("the policy cannot be used; %s:\n%s", consequence, message)
            if self._on_error is not None:
                self._on_error()
        self.last_error = message

    def _state(self) -> State:
        try:
            files = policy_files(self._directory)
        except PolicyError:
            return ()
        found: list[tuple[str, int, int, int, int]] = []
        for file in files:
            try:
                stat = file.stat()
            except OSError:
                found.append((file.name, 0, 0, 0, 0))
            else:
                found.append((file.name, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
        return tuple(found)


def _fresh(state: State) -> bool:
    newest = max((max(entry[3], entry[4]) for entry in state), default=0)
    return abs(time.time_ns() - newest) < _JUST_WRITTEN * 1e9
