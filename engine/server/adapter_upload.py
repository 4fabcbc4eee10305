"""An adapter that comes as the body of a request: a tar archive with its two files.

The body is written to a file beside its digest, so that neither its size nor how slowly it comes matters. Only then it
is looked at: names in the archive choose between two files and nothing else, so none leads anywhere. The folder that
it becomes is named by the digest of the files, and appears whole or not at all.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import fcntl
import hashlib
import os
import re
import shutil
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from starlette.types import Receive

from engine.adapter_files import CONFIG, FILES
from engine.errors import BodyTooLarge, InvalidRequest, StorageFull
from engine.server.disconnect import ClientDisconnected

_UPLOADS, _LOCK = "uploads-", ".lock"
_PART = 2**20
"""Bytes that are written at a time."""
_MOST_CONFIG = 2**20
_DIGEST = re.compile(r"sha-256=:([A-Za-z0-9+/=]+):")
"""RFC 9530's."""
_COMING = ".coming-"
_NOT_TAR = (tarfile.TarError, ValueError, EOFError, ArithmeticError, LookupError)
"""What ``tarfile`` raises for bytes that are no archive."""


class AdapterUploads:
    """In a folder of this engine's own within ``home``. At the next start the adapters that it had have to be sent
    again: what engines that are gone have left is removed."""

    def __init__(self, home: Path, max_bytes: int) -> None:
        """``max_bytes``: of a body."""
        self.in_use: Callable[[Path], bool] = lambda folder: False
        """Whether an adapter is in the folder."""
        self._home = home
        self._max_bytes = max_bytes
        self._place = asyncio.Lock()
        self._held: Counter[Path] = Counter()
        self._folder: Path | None = None
        self._lock: IO[bytes] | None = None
        """Open as long as this process lives."""

    async def receive(self, receive: Receive, headers: Mapping[bytes, bytes]) -> tuple[Path, str]:
        """The adapter's folder, and the digest of its files. The folder stays until ``clean`` is called, as often as it
        was given.

        Raises ``InvalidRequest`` for a body that is not what its digest says or no archive of an adapter,
        ``BodyTooLarge``, ``StorageFull``, or ``ClientDisconnected``.
        """
        expected = _expected(headers)
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self._max_bytes:
            raise self._too_large()
        try:
            async with self._place:
                folder = await asyncio.to_thread(self._open)
            coming = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=_COMING, dir=folder))
            try:
                with await asyncio.to_thread((coming / "body").open, "w+b") as file:
                    if await self._write(receive, file) != expected:
                        raise InvalidRequest(
                            "The body is not the one whose SHA-256 the header content-digest has: send it again.",
                            param="content-digest",
                        )
                    digest = await asyncio.to_thread(_unpack, file, coming / "adapter")
                final = folder / digest
                async with self._place:
                    self._held[final] += 1
                    await asyncio.to_thread(_settle, coming / "adapter", final)
            finally:
                await asyncio.to_thread(shutil.rmtree, coming, True)
        except OSError as error:
            raise _not_written(error) from error
        return final, digest

    async def clean(self, folder: Path, *, received: bool = False) -> None:
        """Removes one that ``receive`` made, and nobody uses any more. ``received``: by who got it from there."""
        async with self._place:
            self._held[folder] -= received
            mine = folder.parent == self._folder
            if mine and not self._held[folder] and not self.in_use(folder):
                await asyncio.to_thread(shutil.rmtree, folder, True)

    def close(self) -> None:
        """Removes all that there is: nobody uses it any more."""
        if self._folder is not None and self._lock is not None:
            shutil.rmtree(self._folder, True)
            self._lock.close()
            self._folder = self._lock = None

    def _open(self) -> Path:
        """This engine's folder."""
        if self._folder is None:
            for left in self._home.glob(f"{_UPLOADS}*"):
                with suppress(OSError), (left / _LOCK).open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left)
            folder = Path(tempfile.mkdtemp(prefix=_UPLOADS, dir=self._home))
            lock = self._lock = (folder / _LOCK).open("wb")
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._folder = folder
        return self._folder

    async def _write(self, receive: Receive, file: IO[bytes]) -> bytes:
        """The body to ``file``; its SHA-256."""
        digest, size, parts, held = hashlib.sha256(), 0, list[bytes](), 0

        def write(data: bytes) -> None:
            digest.update(data)
            file.write(data)

        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part = message.get("body", b"")
            size += len(part)
            if size > self._max_bytes:
                raise self._too_large()
            more = message.get("more_body", False)
            parts.append(part)
            held += len(part)
            if held >= _PART or not more:
                await asyncio.to_thread(write, b"".join(parts))
                parts, held = [], 0
        return digest.digest()

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The adapter is larger than the {self._max_bytes} bytes of --max-adapter-bytes.")


def _unpack(file: IO[bytes], made: Path) -> str:
    """The archive's two files into the new folder ``made``; their digest."""
    made.mkdir()
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            while (member := archive.next()) is not None:
                name = member.name.removeprefix("./")
                if name in FILES:
                    _extract(archive, member, made / name)
    except _NOT_TAR as error:
        raise InvalidRequest(f"The body is no tar archive: {error}.") from error
    digest = hashlib.sha256()
    for name in FILES:
        try:
            with (made / name).open("rb") as part:
                while data := part.read(_PART):
                    digest.update(data)
        except FileNotFoundError:
            raise InvalidRequest(
                f"The archive lacks {name}. Make it with: tar c -C FOLDER {' '.join(FILES)}"
            ) from None
    return digest.hexdigest()


def _settle(made: Path, final: Path) -> None:
    """Where the same is there already, its files may be damaged: they are replaced."""
    if final.is_dir():
        for name in FILES:
            (made / name).replace(final / name)
    else:
        made.rename(final)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    source = archive.extractfile(member) if member.isreg() and not member.issparse() else None
    if source is None:
        raise InvalidRequest(f"{member.name} in the archive is not a plain file.")
    if path.name == CONFIG and member.size > _MOST_CONFIG:
        raise InvalidRequest(f"{CONFIG} is larger than {_MOST_CONFIG} bytes.")
    if path.exists():
        raise InvalidRequest(f"{member.name} is in the archive more than once.")
    with path.open("xb") as target:
        shutil.copyfileobj(source, target, _PART)
        if target.tell() != member.size:
            raise InvalidRequest(f"{member.name} in the archive is cut off.")
        target.flush()
        os.fsync(target.fileno())


def _expected(headers: Mapping[bytes, bytes]) -> bytes:
    found = _DIGEST.search(headers.get(b"content-digest", b"").decode("latin-1"))
    try:
        digest = base64.b64decode(found[1], validate=True) if found else b""
    except binascii.Error:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise InvalidRequest(
            "The header 'content-digest: sha-256=:BASE64:' with the body's SHA-256 is missing.",
            param="content-digest",
        )
    return digest


def _not_written(error: OSError) -> StorageFull:
    return StorageFull(
        f"The adapter cannot be written to --adapter-folder: {error.strerror or error}. Make room there, or give a "
        "folder that the engine may write to."
    )
