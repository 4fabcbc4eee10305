"""KV blocks in one file: what survives the process, and is refused where it is not what was written.

    one page    format, fingerprint, sizes: JSON, padded with zeros
    a table     a header of 64 bytes for each place: key, depth, order, checksums
    places      each a block's content

A place's content is written before its header, and the header has a checksum of the content and of its own. So after
a kill in the middle of a write, or a page that the disk lost, the place has a header that does not match it: it is
found out when the file is opened, or when the place is read, and is an empty place from then on.

Blocks are read straight to where they are wanted, not mapped: reading a map of a truncated file, or writing to one on
a full disk, would kill the process.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import struct
import time
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from engine.errors import StartupError

log = logging.getLogger("engine.worker")

NAME = "kv_blocks"
ENGINES = 8
"""That may have a file each in one folder: ``kv_blocks``, ``kv_blocks.1`` …"""
_FORMAT = 1
_PAGE = 4096
_HEADER = struct.Struct("<4s16sIQI")
"""Magic, key, depth, order in which they were written, checksum of key and content."""
_HEADER_SIZE = 64
_MAGIC = b"KVB1"
_POLL = 0.05
"""Seconds between two attempts to lock the file."""
_SILENCE = 60.0
"""Seconds between two lines of the log about writes that fail."""


class BlockFile:
    """The folder's first file that no other engine has; it begins empty where its blocks are of another model, layout
    or size. Raises ``StartupError`` if none can be used. One thread may write, and one read, at a time."""

    def __init__(
        self,
        folder: Path,
        fingerprint: dict[str, object],
        block_bytes: int,
        size: int,
        *,
        patience: float = 10.0,
    ) -> None:
        """``size``: bytes that the file may take. ``patience``: seconds in which another engine may end, after which
        this one has another file: a successor begins before the one that it replaces ends."""
        self.places = (size - _PAGE) // (_HEADER_SIZE + block_bytes)
        while self.places > 0 and self._begin + self.places * block_bytes > size:
            self.places -= 1
        if self.places < 1:
            raise StartupError(
                f"--disk-kv-size {size} is less than one KV block of {block_bytes} bytes needs."
            )
        self._block_bytes, self._start = block_bytes, self._begin
        try:
            self.path, self._file = _claim(folder, patience)
            os.utime(self._file)  # by which is known how long nobody has used it
        except OSError as error:
            raise StartupError(f"--disk-kv {folder} cannot be used: {error}.") from error
        try:
            self._open({"format": _FORMAT, "block_bytes": block_bytes, **fingerprint})
        except OSError as error:
            self.close()
            raise StartupError(f"{self.path} cannot be used: {error}.") from error
        except BaseException:
            self.close()
            raise
        self._order = 0
        self._complained = -_SILENCE

    def entries(self) -> list[tuple[int, bytes, int]]:
        """(place, key, depth) of the blocks that are there, by their headers; those to be evicted first at first:
        the deepest, as what follows a block that is gone cannot be found, of these the oldest. Of a block that is there
        twice, as it was refused once, the newer one."""
        newest: dict[bytes, tuple[int, int, int]] = {}
        table = self._read(_PAGE, self.places * _HEADER_SIZE)
        for place in range(len(table) // _HEADER_SIZE):
            row = table[place * _HEADER_SIZE : (place + 1) * _HEADER_SIZE]
            magic, key, depth, order, _ = _HEADER.unpack_from(row)
            (check,) = struct.unpack_from("<I", row, _HEADER.size)
            if magic == _MAGIC and check == crc32(row[: _HEADER.size]):
                self._order = max(self._order, order)
                if key not in newest or newest[key][1] < order:
                    newest[key] = depth, order, place
        found = sorted(newest.items(), key=lambda one: (-one[1][0], one[1][1]))
        return [(place, key, depth) for key, (depth, _, place) in found]

    def write(self, place: int, key: bytes, depth: int, content: memoryview) -> bool:
        """False, and logged now and then, if it fails: the place is then empty."""
        self._order += 1
        header = _HEADER.pack(_MAGIC, key, depth, self._order, crc32(content, crc32(key)))
        header += struct.pack("<I", crc32(header))
        try:
            self._write(self._start + place * self._block_bytes, content)
            self._write(_PAGE + place * _HEADER_SIZE, memoryview(header.ljust(_HEADER_SIZE, b"\0")))
        except OSError as error:
            now = time.monotonic()
            if now - self._complained >= _SILENCE:
                self._complained = now
                log.warning("KV blocks cannot be written to %s: %s; the engine goes on", self.path, error)
            return False
        return True

    def read(self, place: int, key: bytes, content: memoryview) -> bool:
        """Into ``content``; False, and logged, if it is not what was written under ``key``."""
        try:
            row = self._read(_PAGE + place * _HEADER_SIZE, _HEADER_SIZE)
            if len(row) < _HEADER_SIZE:
                raise OSError("the file was truncated")
            _, found, _, _, check = _HEADER.unpack_from(row)
            got = os.preadv(self._file, [content], self._start + place * self._block_bytes)
        except OSError as error:
            log.warning("a KV block cannot be read from %s: %s", self.path, error)
            return False
        if found != key or got < len(content) or crc32(content, crc32(key)) != check:
            log.warning("a KV block in %s is not what was written: it is computed again", self.path)
            return False
        return True

    def close(self) -> None:
        with suppress(OSError):
            os.utime(self._file)
        os.close(self._file)

    @property
    def _begin(self) -> int:
        """Where places begin: after the page and the table, at a page's beginning."""
        return -(-(_PAGE + self.places * _HEADER_SIZE) // _PAGE) * _PAGE

    def _open(self, wanted: dict[str, object]) -> None:
        page = self._read(0, _PAGE).rstrip(b"\0")
        if page:
            try:
                found = json.loads(page)
                places = found.pop("places")
            except (ValueError, AttributeError, KeyError):
                raise StartupError(
                    f"{self.path} is not a file of KV blocks: give --disk-kv another folder."
                ) from None
            others = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
            if not others and places == self.places:
                return
            if others:
                log.warning(
                    "%s has KV blocks of another %s, which would be wrong here: it begins empty",
                    self.path,
                    " and ".join(others),
                )
            else:
                log.info("%s had another size: it begins empty", self.path)
        os.ftruncate(self._file, 0)
        os.ftruncate(self._file, self._start + self.places * self._block_bytes)
        page = json.dumps({**wanted, "places": self.places}).encode()
        if len(page) > _PAGE:
            raise ValueError(f"a fingerprint of {len(page)} bytes does not fit into a page")
        self._write(0, memoryview(page.ljust(_PAGE, b"\0")))

    def _read(self, offset: int, size: int) -> bytes:
        parts = []
        while size > 0:
            part = os.pread(self._file, size, offset)
            if not part:
                break
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)

    def _write(self, offset: int, data: memoryview) -> None:
        while data:
            count = os.pwrite(self._file, data, offset)
            data, offset = data[count:], offset + count


def _claim(folder: Path, patience: float) -> tuple[Path, int]:
    """The first file that is nobody else's, locked. Raises ``OSError`` and ``StartupError``."""
    for number in range(ENGINES):
        path = folder / (f"{NAME}.{number}" if number else NAME)
        locked = True
        while locked:
            file = _open_at(path)
            try:
                locked = _lock(file, 0.0 if number else patience)
                if locked and is_at(path, file):
                    if number:
                        log.info("KV blocks go to %s, as other engines have the files before it", path)
                    return path, file
            except BaseException:
                os.close(file)
                raise
            os.close(file)
    raise StartupError(
        f"{folder} is in use by {ENGINES} other engines: give this one its own --disk-kv folder."
    )


def _open_at(path: Path) -> int:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Its folder may be deleted meanwhile, as it is empty: see ``unused_files.py``.
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def is_at(path: Path, file: int) -> bool:
    """False if it was deleted between being opened and being locked."""
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except FileNotFoundError:
        return False


def _lock(file: int, patience: float) -> bool:
    """False if another engine has it. One that was killed may be about to let go of it."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(_POLL)
