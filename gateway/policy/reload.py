"""Following a policy folder: each good change is taken up within a second, a bad one leaves all as it was.

But for the keys: one that is taken out is refused within a second even while the folder cannot be loaded, and so is one
whose file cannot be read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType

from gateway.policy.files import FollowedFiles
from gateway.policy.loader import Loaded, load_policy, policy_of
from gateway.policy.problems import PolicyError
from gateway.policy.revoked_keys import RevocationTracker, RevokedKeys

log = logging.getLogger(__name__)

_RETRY = 5.0
_SAY_AGAIN = 60.0
_NOBODY = RevokedKeys()


class PolicyWatcher:
    """Polls a folder and calls ``on_change`` with each new policy, one call at a time.

    Polling sees everything: editors that rename, ConfigMaps that swap a symlink, network file systems. What cannot be
    loaded, or what ``on_change`` fails to take up, is logged once and the last good policy stays. Keys come first:
    ``on_withdrawn`` is told which of that policy no longer count, each time that this changes, before anything is
    loaded.

    As an async context manager it loads the policy on entering; ``PolicyError`` then means there is none at all.
    """

    def __init__(
        self,
        directory: Path,
        on_change: Callable[[Loaded], Awaitable[None]],
        *,
        on_error: Callable[[], object] | None = None,
        on_withdrawn: Callable[[RevokedKeys], object] | None = None,
        on_keys: Callable[[str], object] | None = None,
        also: Sequence[Path] = (),
        fallback: Path | None = None,
        env: Mapping[str, str] = os.environ,
        interval: float = 0.2,
    ) -> None:
        """``also`` are files elsewhere that belong to the policy while they are there.

        ``on_keys`` is told the ``keys_in_force`` each time that they change. ``fallback`` is a folder that is read in
        place of a broken one at the start, and only then.
        """
        self.generation = 0
        """How many policies have been taken up."""
        self.last_error: str | None = None
        """Why the folder as it is now is not in force; None while it is."""
        self.current: Loaded | None = None
        self.keys_in_force = ""
        """A digest of the hashes of all keys that are let in: equal where the same keys are."""
        self._directory = directory
        self._on_change = on_change
        self._on_error = on_error
        self._on_withdrawn = on_withdrawn
        self._on_keys = on_keys
        self._keys_told: str | None = ""
        """The last of ``keys_in_force`` that was told; None while one could not be."""
        self._also = also
        self._fallback = fallback
        self._env = env
        self._interval = interval
        self._files = FollowedFiles(directory, also)
        self._standing = RevocationTracker(env)
        self._withdrawn = _NOBODY
        self._warned_at = float("-inf")
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
        for _ in range(2):
            await asyncio.to_thread(self._files.look)
        try:
            # As it is now, whether it stands still or not: there is no other to go on with.
            loaded = await asyncio.to_thread(load_policy, self._directory, self._env, also=self._also)
        except PolicyError as error:
            if self._fallback is None or not self._fallback.is_dir():
                raise
            self._failed(error, "the policy that worked last is used")
            loaded = await asyncio.to_thread(load_policy, self._fallback, self._env)
        await self._take_up(loaded)
        if self.last_error is not None:
            await self._withdraw()
        self._task = asyncio.create_task(self._follow(), name="policy watcher")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def lets_in(self, digest: str) -> bool:
        """Whether the key with this SHA-256 in hex counts."""
        return digest in self._hashes()

    async def _follow(self) -> None:
        read: Loaded | None = None
        while True:
            if self.current is not None and read is not self.current:
                # What is in force is parsed now, and not when one of its keys is revoked.
                read = self.current
                await asyncio.to_thread(
                    self._standing.of, read.policy.keys_in_force, read.sources, read.sources
                )
            await asyncio.sleep(self._interval)
            try:
                await self._poll()
            except Exception:
                log.exception("following the policy folder failed; it is tried again")

    async def _poll(self) -> None:
        changed = await asyncio.to_thread(self._files.look)
        if self._keys_told is None:
            self._tell_keys()
        if changed or self._files.unsettled or self._withdrawn != _NOBODY:
            await self._withdraw()
        if not changed and time.monotonic() < self._retry_at:
            return
        self._retry_at = float("inf")
        try:
            loaded = await asyncio.to_thread(policy_of, self._files.settled, self._env)
            if self.current is None or self.current.fingerprint != loaded.fingerprint:
                await self._take_up(loaded)
        except Exception as error:
            if not isinstance(error, PolicyError):
                self._retry_at = time.monotonic() + _RETRY
            self._failed(error, "the last good policy stays in force")
        else:
            self.last_error = None

    async def _take_up(self, loaded: Loaded) -> None:
        await self._on_change(loaded)
        self.current = loaded
        self.generation += 1
        before, self._withdrawn = self._withdrawn, _NOBODY
        if before != _NOBODY:
            # The new generation has not heard of it, and some may still be so.
            keys, files = loaded.policy.keys_in_force, loaded.sources
            still = self._standing.of(keys, files, files, self._files.unsettled)
            if still != _NOBODY:
                self._tell(still)
        self._tell_keys()
        if self.generation > 1:
            log.info("policy generation %d is in force", self.generation)

    async def _withdraw(self) -> None:
        """Tell of keys in force that no longer stand in the files as they are now."""
        if self.current is None:
            return
        try:
            settled = self._files.settled
        except PolicyError:
            settled = ()
        keys, sources = self.current.policy.keys_in_force, self.current.sources
        withdrawn = await asyncio.to_thread(self._standing.of, keys, sources, settled, self._files.unsettled)
        if withdrawn != self._withdrawn:
            self._tell(withdrawn)
            self._tell_keys()
        self._warn()

    def _tell(self, withdrawn: RevokedKeys) -> None:
        if gone := withdrawn.gone - self._withdrawn.gone:
            log.warning("these keys are gone from the policy and refused: %s", ", ".join(sorted(gone)))
        if withdrawn.unsure - self._withdrawn.unsure:
            self._warned_at = float("-inf")
        self._withdrawn = withdrawn
        if self._on_withdrawn is not None:
            self._on_withdrawn(withdrawn)

    def _warn(self) -> None:
        """Every minute: callers are being refused."""
        now = time.monotonic()
        if self._withdrawn.unsure and now - self._warned_at >= _SAY_AGAIN:
            self._warned_at = now
            files = ", ".join(self._withdrawn.unread) or str(self._directory)
            log.error(
                "%d keys are refused, as their file cannot be read or does not stand still; make it readable for the "
                "user that the gateway runs as: %s (keys: %s)",
                *(len(self._withdrawn.unsure), files, ", ".join(sorted(self._withdrawn.unsure)[:20])),
            )

    def _tell_keys(self) -> None:
        """What is not told, on a full disk say, is in force all the same, and told later."""
        self.keys_in_force = sha256(" ".join(sorted(self._hashes())).encode()).hexdigest()
        if self._on_keys is None or self._keys_told == self.keys_in_force:
            return
        try:
            self._on_keys(self.keys_in_force)
        except OSError as error:
            if self._keys_told is not None:
                log.error("'tollgate keys' cannot be told what this worker has taken up: %s", error)
            self._keys_told = None
        else:
            self._keys_told = self.keys_in_force

    def _hashes(self) -> set[str]:
        if self.current is None:
            return set()
        policy, out = self.current.policy, self._withdrawn.gone | self._withdrawn.unsure
        return {key.sha256 for key in policy.keys_in_force if key.id not in out}

    def _failed(self, error: Exception, consequence: str) -> None:
        message = str(error) if isinstance(error, PolicyError) else f"{type(error).__name__}: {error}"
        if message != self.last_error:
            log.error("the policy cannot be used; %s:\n%s", consequence, message)
            if self._on_error is not None:
                self._on_error()
        self.last_error = message
