"""A segment: a file of frames, each some requests of one tenant, compressed and sealed with that tenant's data key.

A segment begins with a mark and its id (``SEGMENT_HEAD`` bytes). A frame is a head and what it seals. The head has the
length of that, how many requests it holds, when the first and the last came, the data key's id, and a nonce; sealed are
lines of JSON, a request each, compressed (zstd with a dictionary) and encrypted (AES-256-GCM). The head, the segment's
id and the frame's place in it are authenticated, too: no frame can be changed, moved, or put into another segment
unnoticed. A frame that was only begun ends a segment: what stands before it is whole.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import orjson

from gateway.private import private_folder
from gateway.recording.data_key import DataKey
from gateway.recording.recorded_request import RecordedRequest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MARK = b"TGREC1\r\n"
_ID = 16
SEGMENT_HEAD = len(MARK) + _ID
_HEAD = struct.Struct(">IIdd16s12s")
_LONGEST = 2**28
"""Bytes of a frame: a head that says more is none."""
_NONCE = 12
_LEVEL = 3
_SAMPLE = (
    b'{"at":1795821446.512345,"request_id":"req_1a2b3c4d5e6f7890abcdef12","tenant":"","key":"","user":"","tier":"default",'
    b'"api":"responses","api":"messages","api":"completions","api":"embeddings","model":"","answered":"","backend":"",'
    b'"target":"","stream":true,"prompt_tokens":1,"max_tokens":1024,"completion_tokens":1,"cached_tokens":1,'
    b'"reasoning_tokens":1,"blocks":[281474976710655],"block_tokens":64,"prompt_key":"","cache":"miss","cache":"exact",'
    b'"outcome":"refused","status":429,"code":"rate_limit_exceeded","outcome":"failed","status":503,"outcome":"cancelled",'
    b'"status":499,"code":"client_left","findings":[["pii","mask"]],"ttft":0.123456,"duration":1.234567,'
    b'"finish_reason":"stop","finish_reason":"length","finish_reason":"tool_calls","cost":0.000123,"generation":1,'
    b'"priority":1,"deadline":30.0,"tools":true}\n'
)
"""What lines are like, as a dictionary for the compression. Another one needs another ``MARK``."""
_DICTIONARY = zstd.ZstdDict(_SAMPLE, is_raw=True)


class SegmentError(Exception):
    """It is none, or was changed; the message says where."""


class Reads(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(slots=True)
class Part:
    """What a segment holds of one tenant. ``began`` and ``ended``: when the first and the last request came."""

    requests: int = 0
    bytes: int = 0
    began: float = float("inf")
    ended: float = float("-inf")

    def add(self, requests: int, size: int, began: float, ended: float) -> None:
        self.requests += requests
        self.bytes += size
        self.began, self.ended = min(self.began, began), max(self.ended, ended)


@dataclass(frozen=True, slots=True)
class Frame:
    segment: bytes
    number: int
    requests: int
    began: float
    ended: float
    key_id: bytes
    head: bytes
    sealed: bytes

    @property
    def size(self) -> int:
        return len(self.head) + len(self.sealed)

    def requests_of(self, key: DataKey) -> Iterator[RecordedRequest]:
        """Raises ``SegmentError``."""
        content = key.open(self.head[-_NONCE:], self.sealed, _bound(self.segment, self.number, self.head))
        if content is None:
            raise SegmentError(f"frame {self.number} was changed, or sealed with another key")
        for line in zstd.decompress(content, zstd_dict=_DICTIONARY).splitlines():
            yield RecordedRequest.from_json(orjson.loads(line))


def frames(source: Reads) -> Iterator[Frame]:
    """Of a segment from its beginning, up to one that was only begun. Raises ``SegmentError``."""
    start = source.read(SEGMENT_HEAD)
    if len(start) < SEGMENT_HEAD or not start.startswith(MARK):
        raise SegmentError("it does not begin as a segment of recorded requests does")
    number = 0
    while len(head := _exactly(source, _HEAD.size)) == _HEAD.size:
        length, requests, began, ended, key_id, _ = _HEAD.unpack(head)
        if not 0 < length <= _LONGEST:
            raise SegmentError(f"frame {number} has no length: it was damaged")
        sealed = _exactly(source, length)
        if len(sealed) < length:
            return
        yield Frame(start[len(MARK) :], number, requests, began, ended, key_id, head, sealed)
        number += 1


@dataclass(eq=False)
class SegmentFile:
    """One that is being written, by its only writer: it holds a lock on the file, by which others see that it lives."""

    path: Path
    parts: dict[bytes, Part] = field(default_factory=dict)
    """By the data key's id."""
    size: int = 0
    """Bytes of all that is whole."""
    _id: bytes = b""
    _file: int = -1
    _number: int = 0

    @classmethod
    def create(cls, folder: Path) -> SegmentFile:
        """Raises ``OSError``."""
        private_folder(folder)
        identity = secrets.token_bytes(_ID)
        path = folder / f"{identity.hex()}.segment"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            _write(file, MARK + identity)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        return cls(path, size=SEGMENT_HEAD, _id=identity, _file=file)

    @classmethod
    def adopt(cls, path: Path) -> SegmentFile | None:
        """One whose writer is gone, cut behind its last whole frame; None where somebody has it, or it is gone.

        Raises ``OSError`` and ``SegmentError``.
        """
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        try:
            if not path.exists():  # who had the lock before has just put it away
                os.close(file)
                return None
            found = cls(path, _file=file)
            with os.fdopen(os.dup(file), "rb") as source:
                for frame in frames(source):
                    found._id, found.size = frame.segment, found.size + frame.size
                    part = found.parts.setdefault(frame.key_id, Part())
                    part.add(frame.requests, frame.size, frame.began, frame.ended)
            found.size += SEGMENT_HEAD
            os.ftruncate(file, found.size)
        except BaseException:
            os.close(file)
            raise
        return found

    @property
    def name(self) -> str:
        return self.path.stem

    def append(self, key: DataKey, requests: Iterable[RecordedRequest]) -> None:
        """Written as one frame, of which nothing is left where it cannot be. Raises ``OSError``."""
        lines, times = [], []
        for one in requests:
            lines.append(one.to_json())
            times.append(one.at)
        content = zstd.compress(b"\n".join(lines), _LEVEL, zstd_dict=_DICTIONARY)
        nonce = secrets.token_bytes(_NONCE)
        length = len(content) + DataKey.TAG
        head = _HEAD.pack(length, len(lines), min(times), max(times), key.id, nonce)
        sealed = key.seal(nonce, content, _bound(self._id, self._number, head))
        try:
            _write(self._file, head + sealed)
        except OSError:
            os.ftruncate(self._file, self.size)
            os.lseek(self._file, self.size, os.SEEK_SET)
            raise
        size = len(head) + len(sealed)
        self.size += size
        self._number += 1
        self.parts.setdefault(key.id, Part()).add(len(lines), size, min(times), max(times))

    def sync(self) -> None:
        """Raises ``OSError``."""
        os.fsync(self._file)

    def read_all(self, take: Callable[[bytes], object]) -> None:
        """Hand over all of it, in pieces."""
        with self.path.open("rb") as source:
            while piece := source.read(2**20):
                take(piece)

    def release(self) -> None:
        """Whoever finds the file may adopt it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.release()


def _bound(segment: bytes, number: int, head: bytes) -> bytes:
    return MARK + segment + number.to_bytes(8, "big") + head


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _exactly(source: Reads, size: int) -> bytes:
    """So many bytes, or what there is: who reads over a network may be given fewer at once."""
    parts = bytearray()
    while len(parts) < size and (piece := source.read(size - len(parts))):
        parts += piece
    return bytes(parts)
