"""Files whose rows are in a database and whose contents are elsewhere, within each tenant's bounds."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from gateway.databases.database import DatabaseError
from gateway.errors import BadRequest, BodyTooLarge, UpstreamUnavailable
from gateway.files.blobs import BlobError, BlobMissing, Blobs, BlobWriter
from gateway.files.file_table import FileMissing, FileTable, Kept, StoredFile

log = logging.getLogger(__name__)

THREADS = 8
"""That wait for disks, servers and the database, of each worker."""
STEP = 2**18
"""Bytes that are read at once, and a quarter of those that are written."""
SWEEP_EVERY = 300.0
"""Seconds between looks for what has expired, or was left by a crash."""
TOUCH_EVERY = 60.0
"""Seconds between signs of life of uploads under way, whose room is held until they end."""
RETRY_AFTER = 5.0

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Bounds:
    file_bytes: int
    tenant_bytes: int
    tenant_files: int
    max_age: float | None = None
    """Seconds after which any file is gone, whatever was asked for."""


class StoredFiles:
    """One for each process, database and place of contents. Each tenant's files are its own: to all others they do not
    exist.

    All methods raise ``UpstreamUnavailable`` where the database, or what holds the contents, does not work.
    """

    def __init__(self, table: FileTable, blobs: Blobs, bounds: Bounds) -> None:
        self.bounds = bounds
        self._table = table
        self._blobs = blobs
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="files")
        self._sweeping: asyncio.Task[None] | None = None
        self._live: set[str] = set()
        """The contents of uploads under way."""
        self._touching: asyncio.Task[None] | None = None

    async def begin(self, tenant: str, *, key_id: str, most: int | None) -> Upload:
        """An upload of at most ``most`` bytes, which count for what the tenant keeps while it is under way; None is
        for what the gateway writes itself: it counts once it is there, and is never refused.

        Raises ``BadRequest`` where the tenant has no room, ``BodyTooLarge`` where no file may be so large.
        """
        if most is not None and most > self.bounds.file_bytes:
            raise self._too_large()

        def admitted(kept: Kept) -> None:
            if most is not None:
                self._check_room(kept, most)

        blob, now = secrets.token_hex(16), int(time.time())
        upload = StoredFile(f"upload-{blob}", tenant, "", "", most or 0, now, None, key_id)
        try:
            await self.call(self._table.reserve, blob, upload, admitted)
        except asyncio.CancelledError:
            await self._discard(blob)
            raise
        self._live.add(blob)
        if self._touching is None or self._touching.done():
            self._touching = asyncio.create_task(self._touch_while_live())
        return Upload(self, blob, upload, self._blobs.writer(blob), most)

    async def create(
        self,
        tenant: str,
        filename: str,
        purpose: str,
        parts: AsyncIterator[bytes],
        *,
        key_id: str,
        expires_at: int | None = None,
        lasts: bool = False,
    ) -> StoredFile:
        """Keep what ``parts`` yield. Whatever ends it early, an error or a cancellation, nothing is left of it.

        It counts for what the tenant keeps, and is not refused for that: who may not is asked before (``begin``). What
        ``lasts`` is kept beyond the longest that callers' files are.
        """
        upload = await self.begin(tenant, key_id=key_id, most=None)
        try:
            async for part in parts:
                await upload.write(part)
            return await upload.finish(filename, purpose, expires_at=expires_at, lasts=lasts)
        except BaseException:
            await upload.abort()
            raise

    async def find(self, tenant: str, id: str) -> StoredFile | None:
        found = await self._found(tenant, id)
        return found[0] if found is not None else None

    async def listed(
        self, tenant: str, *, purpose: str | None, after: str | None, limit: int, newest_first: bool
    ) -> list[StoredFile]:
        """``after`` is an id, and need not be there any more."""
        return await self.call(
            self._table.listed, tenant, purpose, after, limit, newest_first, int(time.time())
        )

    async def read(self, tenant: str, id: str, *, start: int = 0) -> AsyncGenerator[bytes, None]:
        """What it holds from byte ``start`` on; close it where it is not read to its end.

        Raises ``FileMissing``, at the first step or where it vanishes.
        """
        found = await self._found(tenant, id)
        if found is None:
            raise FileMissing(id)
        reader = self._blobs.reader(found[1], start)
        try:
            while data := await self.call(reader.read, STEP):
                yield data
        except BlobMissing:
            log.error("file '%s' of tenant '%s' has a row but no content: it was removed", id, tenant)
            raise FileMissing(id) from None
        finally:
            await self.call(reader.close)

    async def delete(self, tenant: str, id: str) -> bool:
        """False where there is none."""
        if not is_file_id(id):
            return False
        blob = await self.call(self._table.begin_delete, tenant, id, int(time.time()))
        if blob is None:
            return False
        await self._discard(blob)
        return True

    async def sweep(self) -> int:
        """Remove what has expired, and what crashes have left. Returns how many files that were."""
        removed = 0
        while self._table.exists and (blobs := await self.call(self._table.begin_sweep, int(time.time()))):
            gone = sum([await self._discard(blob) for blob in blobs])
            removed += gone
            if gone < len(blobs):
                break  # they would be found again at once
        return removed

    def start_sweeping(self) -> None:
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep_again_and_again())

    async def aclose(self) -> None:
        tasks = [task for task in (self._sweeping, self._touching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._threads.shutdown()
        self._blobs.close()

    async def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """``function`` in a thread. A cancellation waits for its end: what it did is known then.

        Raises ``UpstreamUnavailable`` for what is not the caller's fault.
        """
        loop = asyncio.get_running_loop()
        task = loop.run_in_executor(self._threads, lambda: function(*args, **kwargs))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # was not asked for by anybody
            raise
        except (BlobError, DatabaseError) as error:
            log.error("files cannot be kept or read now: %s", error)
            raise UpstreamUnavailable(
                "Files cannot be kept or read now. Whoever runs the gateway finds the reason in its log.",
                code="file_storage_unavailable",
                retry_after=RETRY_AFTER,
            ) from error

    async def _found(self, tenant: str, id: str) -> tuple[StoredFile, str] | None:
        if not is_file_id(id):
            return None
        return await self.call(self._table.find, tenant, id, int(time.time()))

    async def _discard(self, blob: str) -> bool:
        """Whether content and row are gone; otherwise the sweep finds them."""
        try:
            await self.call(self._blobs.delete, blob)
            await self.call(self._table.forget, blob)
        except UpstreamUnavailable:
            return False
        return True

    async def _sweep_again_and_again(self) -> None:
        while True:
            try:
                if removed := await self.sweep():
                    log.info("%d files that had expired or were abandoned are removed", removed)
            except UpstreamUnavailable:
                pass  # it is in the log
            except Exception:
                log.exception("expired files could not be removed; it is tried again")
            await asyncio.sleep(SWEEP_EVERY)

    async def _touch_while_live(self) -> None:
        while self._live:
            await asyncio.sleep(TOUCH_EVERY)
            try:
                await self.call(self._table.touch, list(self._live), int(time.time()))
            except UpstreamUnavailable:
                continue  # it is in the log

    def _check_room(self, kept: Kept, most: int) -> None:
        bounds = self.bounds
        if kept.files >= bounds.tenant_files:
            raise BadRequest(
                f"You keep {kept.files:,} files, and this gateway keeps {bounds.tenant_files:,} at most. Delete some.",
                code="file_limit_reached",
            )
        if kept.bytes + most > bounds.tenant_bytes:
            raise BadRequest(
                f"Your files have {kept.bytes:,} bytes, uploads under way included; with up to {most:,} more they "
                f"would exceed the {bounds.tenant_bytes:,} that this gateway keeps for you. Delete some.",
                code="file_storage_full",
            )

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"The file is larger than this gateway keeps ({self.bounds.file_bytes:,} bytes). Split it.",
            param="file",
            code="file_too_large",
        )


class Upload:
    """A file that is being written. End it with ``finish`` or ``abort``; after ``finish`` ``abort`` changes nothing."""

    def __init__(
        self, store: StoredFiles, blob: str, owner: StoredFile, writer: BlobWriter, most: int | None
    ) -> None:
        self._store = store
        self._blob = blob
        self._owner = owner
        self._writer = writer
        self._most = most
        self._size = 0
        self._waiting: list[bytes] = []
        self._waits = 0
        self._ended = False

    async def write(self, data: bytes) -> None:
        """Raises ``BodyTooLarge``."""
        self._size += len(data)
        if self._most is not None and self._size > self._most:
            raise self._store._too_large()
        self._waiting.append(data)
        self._waits += len(data)
        if self._waits >= 4 * STEP:
            await self._flush()

    async def finish(
        self,
        filename: str,
        purpose: str,
        *,
        expires_after: int | None = None,
        expires_at: int | None = None,
        lasts: bool = False,
    ) -> StoredFile:
        """``expires_after`` is in seconds from now."""
        await self._flush()
        await self._store.call(self._writer.commit)
        now = time.time_ns()
        created, max_age = now // 10**9, None if lasts else self._store.bounds.max_age
        ends: list[float] = [expires_at] if expires_at is not None else []
        ends += [created + seconds for seconds in (expires_after, max_age) if seconds is not None]
        file = StoredFile(
            f"file-{now:016x}{secrets.token_hex(8)}",
            self._owner.tenant,
            filename,
            purpose,
            self._size,
            created,
            int(min(ends)) if ends else None,
            self._owner.key_id,
        )
        if not await self._store.call(self._store._table.finish, self._blob, file):
            raise BadRequest("The upload was given up: it showed no sign of life.", code="upload_abandoned")
        self._end()
        return file

    async def abort(self) -> None:
        """Nothing is left of it. Does not raise."""
        if self._ended:
            return
        self._end()
        try:
            await self._store.call(self._writer.abort)
        except UpstreamUnavailable:
            return  # the sweep finds it
        await self._store._discard(self._blob)

    def _end(self) -> None:
        self._ended = True
        self._store._live.discard(self._blob)

    async def _flush(self) -> None:
        data, self._waiting, self._waits = b"".join(self._waiting), [], 0
        if data:
            await self._store.call(self._writer.write, data)


def is_file_id(text: str) -> bool:
    return len(text) == 37 and text.startswith("file-") and all(c in "0123456789abcdef" for c in text[5:])
