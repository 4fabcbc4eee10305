"""What is kept of a file, and what a store of files is asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredFile:
    id: str
    """``file-`` and hexadecimal digits, later ones greater."""
    tenant: str
    filename: str
    """As its owner calls it: a label, never a path."""
    purpose: str
    bytes: int
    created_at: int
    """Unix time, as is ``expires_at``."""
    expires_at: int | None
    """None where it is kept until it is deleted."""
    key_id: str
    """Of the key that it came with."""


class FileMissing(Exception):
    """There is no such file, or not any more; also where its content was removed past the store."""


class FileStore(Protocol):
    """Each tenant's files are its own: to all others they do not exist.

    All methods raise ``UpstreamUnavailable`` where the database, or what holds the contents, does not work.
    """

    async def create(
        self,
        tenant: str,
        filename: str,
        purpose: str,
        parts: AsyncIterator[bytes],
        *,
        key_id: str,
        expires_at: int | None = None,
    ) -> StoredFile:
        """Keep what ``parts`` yield. Whatever ends it early, an error or a cancellation, nothing is left of it.

        It counts for what the tenant keeps, and is not refused for that: who may not is asked before
        (``StoredFiles.begin``).
        """
        ...

    async def find(self, tenant: str, id: str) -> StoredFile | None: ...

    async def listed(
        self, tenant: str, *, purpose: str | None, after: str | None, limit: int, newest_first: bool
    ) -> list[StoredFile]:
        """``after`` is an id, and need not be there any more."""
        ...

    def read(self, tenant: str, id: str, *, start: int = 0) -> AsyncGenerator[bytes, None]:
        """What it holds from byte ``start`` on; close it where it is not read to its end.

        Raises ``FileMissing``, at the first step or where it vanishes.
        """
        ...

    async def delete(self, tenant: str, id: str) -> bool:
        """False where there is none."""
        ...
