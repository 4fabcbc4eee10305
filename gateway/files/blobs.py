"""Where the contents of files are kept: by names of ours, in threads of ours."""

from __future__ import annotations

from typing import Protocol


class BlobError(Exception):
    """What holds the contents does not work now. The message is for the log."""


class BlobMissing(Exception):
    """There is nothing under this name."""


class BlobWriter(Protocol):
    """Opened with the first call. Nothing is there under its name before ``commit``, and nothing after ``abort``.
    Raises ``BlobError``."""

    def write(self, data: bytes) -> None: ...

    def commit(self) -> None:
        """Once it returns the content is there, even if the machine stops."""
        ...

    def abort(self) -> None:
        """May be called at any time before ``commit`` has returned, and again."""
        ...


class BlobReader(Protocol):
    """Opened with the first call."""

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; none at the end. Raises ``BlobMissing`` and ``BlobError``."""
        ...

    def close(self) -> None: ...


class Blobs(Protocol):
    """Names are of letters and digits. What waits for a disk or a server (``delete``, and all methods of writers and
    readers) is called in threads."""

    def writer(self, name: str) -> BlobWriter: ...

    def reader(self, name: str, start: int) -> BlobReader:
        """From byte ``start`` on."""
        ...

    def delete(self, name: str) -> None:
        """What is not there, or only begun, is gone afterwards, too. Raises ``BlobError``."""
        ...

    def close(self) -> None: ...
