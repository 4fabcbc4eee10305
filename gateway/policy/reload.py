"""Watching a policy folder: each valid change is applied within a second, an invalid one changes nothing.

Keys are the exception: one that is removed is refused within a second even while the policy is invalid, and so is one
whose file cannot be read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from gateway.policy.files import WatchedFiles
from gateway.policy.key_table import KeyTableReader
from gateway.policy.loader import Loaded, load_policy, policy_of
from gateway.policy.problems import PolicyError
from gateway.policy.revoked_keys import RevocationTracker, RevokedKeys
from gateway.policy.variables import Variables

log = logging.getLogger(__name__)

_RETRY = 5.0
_LOG_AGAIN = 60.0
_SEEN_AGAIN = 5
"""Polls after which a mistake is one: until then it may be of a file whose writer was held up half way."""
_NO_KEYS = RevokedKeys()
_STAYS = "the last good policy stays in force"


class PolicyWatcher:
    """Polls a folder and calls ``on_change`` with each new policy, one call at a time.

    Polling sees everything: editors that rename, ConfigMaps that swap a symlink, network file systems. A policy that is
    still invalid after some more polls, or that ``on_change`` fails to apply, is logged once and the last good policy
    stays. Keys come first:
    ``on_revoked`` gets the keys of that policy that are to be refused, each time that these change, before anything is
    loaded.

    As an async context manager it loads the policy on entering; ``PolicyError`` then means that there is none at all.
    """

    def __init__(
        self,
        directory: Path,
        on_change: Callable[[Loaded], Awaitable[None]],
        *,
        on_error: Callable[[Exception], object] | None = None,
        on_revoked: Callable[[RevokedKeys], object] | None = None,
        on_in_force: Callable[[str], object] | None = None,
        also: Sequence[Path] = (),
        fallback: Path | None = None,
        env: Mapping[str, str] = os.environ,
        interval: float = 0.2,
        tables: KeyTableReader | None = None,
        logs: bool = True,
    ) -> None:
        """``also`` are files elsewhere that belong to the policy while they are there.

        ``on_error`` gets why a policy is not in force, once. ``on_in_force`` gets ``in_force`` each time that it
        changes. ``fallback`` is a folder that is read instead of an invalid one at the start, and only then. ``tables``
        remembers the keys that it read before; secrets of ``env`` that are files are followed, too. Without ``logs``
        another process that follows the same folder logs what all of them find; only what fails here is logged here.
        """
        self.generation = 0
        """How many policies have been applied."""
        self.last_error: str | None = None
        """Why the present content of the folder is not in force; None while it is."""
        self.current: Loaded | None = None
        self.keys_digest = ""
        """A digest of the hashes of all keys that are accepted."""
        self._directory = directory
        self._on_change = on_change
        self._on_error = on_error
        self._on_revoked = on_revoked
        self._on_in_force = on_in_force
        self._published: str | None = ""
        """What ``on_in_force`` got last; None while it failed."""
        self._also = also
        self._fallback = fallback
        self._env = env
        self._interval = interval
        self._files = WatchedFiles(directory, also)
        self._tracker = RevocationTracker(env)
        self._tables = tables or KeyTableReader()
        self._logs = logs
        self._accepted: frozenset[str] = frozenset()
        """The hashes of all keys that are accepted."""
        self._revoked = _NO_KEYS
        self._warned_at = float("-inf")
        self._retry_at = float("inf")
        self._mistake: str | None = None
        """What was wrong when the folder was last read."""
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> PolicyWatcher:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Load, apply, and follow. Raises ``PolicyError``, or whatever ``on_change`` raises."""
        for _ in range(2):
            await asyncio.to_thread(self._files.look)
        try:
            # As it is now, even while it is being written: there is no earlier one.
            loaded = await asyncio.to_thread(self._load)
        except PolicyError as error:
            if self._fallback is None or not self._fallback.is_dir():
                raise
            self._failed(error, "the policy that worked last is used")
            loaded = await asyncio.to_thread(load_policy, self._fallback, self._env)
        await self._apply(loaded)
        if self.last_error is not None:
            await self._revoke()
        self._task = asyncio.create_task(self._follow(), name="policy watcher")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    @property
    def in_force(self) -> str:
        """A digest of the policy and of the keys: two processes in which it is equal obey the same."""
        return f"{self.keys_digest} {self.current.fingerprint if self.current is not None else ''}"

    def accepts(self, digest: str) -> bool:
        """Whether the key with this SHA-256 in hex is accepted."""
        return digest in self._accepted

    def _look(self) -> bool:
        secrets = isinstance(self._env, Variables) and self._env.look()
        return self._files.look() or secrets

    def _load(self) -> Loaded:
        return load_policy(self._directory, self._env, also=self._also, tables=self._tables)

    async def _follow(self) -> None:
        read: Loaded | None = None
        while True:
            if self.current is not None and read is not self.current:
                # The files in force are parsed now, and not when one of their keys is revoked.
                read = self.current
                await asyncio.to_thread(
                    self._tracker.of, read.policy.keys_in_force, read.sources, read.sources
                )
            await asyncio.sleep(self._interval)
            try:
                await self._poll()
            except Exception:
                log.exception("following the policy folder failed; it is tried again")

    async def _poll(self) -> None:
        changed = await asyncio.to_thread(self._look)
        if self._published is None:
            self._publish()
        if changed or self._files.unsettled or self._revoked != _NO_KEYS:
            await self._revoke()
        if not changed and time.monotonic() < self._retry_at:
            return
        self._retry_at = float("inf")
        try:
            loaded = await asyncio.to_thread(policy_of, self._files.settled, self._env, tables=self._tables)
            if self.current is None or self.current.fingerprint != loaded.fingerprint:
                await self._apply(loaded)
        except PolicyError as error:
            seen, self._mistake = self._mistake, str(error)
            if self._mistake == seen:
                self._failed(error, _STAYS)
            else:
                self._retry_at = time.monotonic() + _SEEN_AGAIN * self._interval
        except Exception as error:
            self._retry_at = time.monotonic() + _RETRY
            self._failed(error, _STAYS)
        else:
            self.last_error = self._mistake = None

    async def _apply(self, loaded: Loaded) -> None:
        await self._on_change(loaded)
        self.current = loaded
        self.generation += 1
        before, self._revoked = self._revoked, _NO_KEYS
        if before != _NO_KEYS:
            # The new generation does not know of them, and some may still be revoked.
            keys, files = loaded.policy.keys_in_force, loaded.sources
            still = await asyncio.to_thread(self._tracker.of, keys, files, files, self._files.unsettled)
            if still != _NO_KEYS:
                self._report(still)
        await self._update_accepted()

    async def _revoke(self) -> None:
        """Report keys in force that are no longer in the files as they are now."""
        if self.current is None:
            return
        try:
            settled = self._files.settled
        except PolicyError:
            settled = ()
        keys, sources = self.current.policy.keys_in_force, self.current.sources
        revoked = await asyncio.to_thread(self._tracker.of, keys, sources, settled, self._files.unsettled)
        if revoked != self._revoked:
            self._report(revoked)
            await self._update_accepted()
        self._warn()

    def _report(self, revoked: RevokedKeys) -> None:
        if (gone := revoked.gone - self._revoked.gone) and self._logs:
            log.warning(
                "these keys were removed from the policy and are refused: %s", ", ".join(sorted(gone))
            )
        if revoked.unverified - self._revoked.unverified:
            self._warned_at = float("-inf")
        self._revoked = revoked
        if self._on_revoked is not None:
            self._on_revoked(revoked)

    def _warn(self) -> None:
        """Every minute, as callers are being refused."""
        now = time.monotonic()
        if self._logs and self._revoked.unverified and now - self._warned_at >= _LOG_AGAIN:
            self._warned_at = now
            files = ", ".join(self._revoked.unreadable_files) or str(self._directory)
            log.error(
                "%d keys are refused, as their file cannot be read or keeps changing; make it readable for the "
                "user that the gateway runs as: %s (keys: %s)",
                *(len(self._revoked.unverified), files, ", ".join(sorted(self._revoked.unverified)[:20])),
            )

    def _publish(self) -> None:
        """A digest that cannot be published, on a full disk say, is published later; what it says is so anyway."""
        if self._on_in_force is None or self._published == self.in_force:
            return
        try:
            self._on_in_force(self.in_force)
        except OSError as error:
            if self._published is not None:
                log.error("this worker cannot report to 'tollgate keys' what is in force: %s", error)
            self._published = None
        else:
            self._published = self.in_force

    async def _update_accepted(self) -> None:
        self._accepted, self.keys_digest = await asyncio.to_thread(self._accepted_keys)
        self._publish()

    def _accepted_keys(self) -> tuple[frozenset[str], str]:
        """Their hashes, and a digest of these that does not depend on their order."""
        if self.current is None:
            return frozenset(), ""
        refused = self._revoked.gone | self._revoked.unverified
        accepted = [key.sha256 for key in self.current.policy.keys_in_force if key.id not in refused]
        digest = 0
        for value in accepted:
            digest ^= int(value, 16)
        return frozenset(accepted), f"{digest:064x}"

    def _failed(self, error: Exception, consequence: str) -> None:
        message = str(error) if isinstance(error, PolicyError) else f"{type(error).__name__}: {error}"
        if message != self.last_error:
            if self._logs or not isinstance(error, PolicyError):
                log.error("the policy is rejected; %s:\n%s", consequence, message)
            if self._on_error is not None:
                self._on_error(error)
        self.last_error = message
