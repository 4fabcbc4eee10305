"""Contents in a folder of this machine, or in one that several machines mount."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from gateway.files.blobs import BlobError, BlobMissing
from gateway.private import private_folder

PARTIAL = ".partial"
"""Ends the name of what is still being written."""


class FolderBlobs:
    """One file each, which only its owner may read. The folder is made when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def writer(self, name: str) -> _Writer:
        return _Writer(self._folder / name)

    def reader(self, name: str, start: int) -> _Reader:
        return _Reader(self._folder / name, start)

    def delete(self, name: str) -> None:
        with _translated():
            for path in (self._folder / name, self._folder / f"{name}{PARTIAL}"):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is held."""


class _Writer:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f"{path.name}{PARTIAL}")
        self._file: FileIO | None = None

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        with _translated():
            file = self._opened()
            while rest:
                rest = rest[file.write(rest) :]

    def commit(self) -> None:
        with _translated():
            file = self._opened()
            os.fsync(file.fileno())
            file.close()
            self._partial.rename(self._path)
            _sync_folder(self._path.parent)

    def abort(self) -> None:
        with _translated():
            if self._file is not None:
                self._file.close()
            self._partial.unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)

    def _opened(self) -> FileIO:
        if self._file is None:
            private_folder(self._path.parent)
            self._file = FileIO(os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")
        return self._file


class _Reader:
    def __init__(self, path: Path, start: int) -> None:
        self._path = path
        self._start = start
        self._file: FileIO | None = None
        self._closed = False

    def read(self, size: int) -> bytes:
        with _translated():
            if self._file is None:
                self._file = self._opened()
            data = self._file.read(size) or b""
            if self._closed:  # by who gave up on a read that a thread had begun
                self._file.close()
            return data

    def close(self) -> None:
        self._closed = True
        if self._file is not None:
            self._file.close()

    def _opened(self) -> FileIO:
        try:
            file = FileIO(self._path)
        except FileNotFoundError:
            raise BlobMissing(self._path.name) from None
        file.seek(self._start)
        return file


def _sync_folder(folder: Path) -> None:
    """A new name outlives a power cut once its folder is written."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BlobError(str(error)) from error
