"""A file of packed weights: written once, checked when it is opened, and mapped.

Its entries, then an index (JSON: where the tensors of each are, and the SHA-256 of each piece of what precedes), then a
footer with the index's place and SHA-256. What is damaged or broken off at any place is found before it is used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from kernels.native.linear import Kind, PackedTensors

SUFFIX = ".tollgate-weights"
_MAGIC = b"TGWCACH1"
_FOOTER = struct.Struct("<8sQQ32s")
"""Magic, index's offset and length, its digest."""
_PIECE = 1 << 24
"""Bytes hashed at a time."""
_ALIGNMENT = 64
_POPULATE_READ = 22
"""``MADV_POPULATE_READ``: what is resident is then what is used, as it is reported."""
_DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "bfloat16": torch.bfloat16}


class Damaged(Exception):
    """The file is not what was written."""


class CacheFile:
    """Raises ``OSError``, and ``Damaged``."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            # torch takes no read-only memory; these pages are private, but shared as long as nobody writes to them.
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            _need_owner(os.fstat(file.fileno()))
        self._entries = self._checked_index(path.name)

    def get(self, name: str) -> list[PackedTensors] | None:
        return (
            [_mapped(self._bytes, 0, part) for part in self._entries[name]] if name in self._entries else None
        )

    def _checked_index(self, name: str) -> dict[str, Any]:
        size = len(self._bytes)
        if size < _FOOTER.size:
            raise Damaged("it is too short")
        magic, place, length, digest = _FOOTER.unpack(self._bytes[size - _FOOTER.size :])
        index = self._bytes[place : place + length]
        if magic != _MAGIC or place + length + _FOOTER.size != size or _sha256(index) != digest:
            raise Damaged("its index is damaged")
        found = json.loads(index)
        if found["name"] != name:  # which says what it was made from
            raise Damaged("it was written under another name")
        with memoryview(self._bytes) as view, ThreadPoolExecutor(torch.get_num_threads()) as threads:
            pieces = [view[start : min(start + _PIECE, place)] for start in range(0, place, _PIECE)]
            digests = [digest.hex() for digest in threads.map(_sha256, pieces)]
            for piece in pieces:
                piece.release()
        if digests != found["pieces"]:
            raise Damaged("its content is damaged")
        entries: dict[str, Any] = found["entries"]
        return entries


class CacheWriter:
    """Writes beside ``path``, which is there only once all of it is written. Raises ``OSError``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=_PARTIAL, dir=path.parent)
        self._scratch = Path(name)
        self._file = open(descriptor, "w+b", buffering=0)  # noqa: SIM115 -- closed by ``commit`` or ``discard``
        # Held as long as this process lives: see ``remove_leftovers``.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._place = 0
        self._entries: dict[str, Any] = {}
        self._pieces: list[str] = []
        self._hash, self._hashed = hashlib.sha256(), 0

    def add(self, name: str, parts: Sequence[PackedTensors]) -> list[PackedTensors]:
        """The same tensors, mapped from the file."""
        # A mapping begins at a page.
        self._write(b"\0" * (-self._place % mmap.ALLOCATIONGRANULARITY))
        start = self._place
        described = [self._put(part) for part in parts]
        self._entries[name] = described
        mapped = mmap.mmap(self._file.fileno(), self._place - start, offset=start, access=mmap.ACCESS_COPY)
        with suppress(OSError):  # Linux before 5.14: pages are then mapped as they are read
            mapped.madvise(_POPULATE_READ)
        return [_mapped(mapped, start, part) for part in described]

    def commit(self) -> None:
        if self._hashed:
            self._pieces.append(self._hash.hexdigest())
        index = json.dumps(
            {"name": self._path.name, "entries": self._entries, "pieces": self._pieces}
        ).encode()
        _write_all(self._file, index)
        _write_all(self._file, _FOOTER.pack(_MAGIC, self._place, len(index), _sha256(index)))
        self._scratch.chmod(0o400)
        self._scratch.replace(self._path)
        self._file.close()

    def discard(self) -> None:
        self._scratch.unlink(missing_ok=True)
        self._file.close()

    def _put(self, part: PackedTensors) -> dict[str, Any]:
        tensors = []
        for tensor in part.tensors:
            self._write(b"\0" * (-self._place % _ALIGNMENT))
            dtype = str(tensor.dtype).removeprefix("torch.")
            tensors.append([self._place, dtype, list(tensor.shape)])
            self._write(memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy()))
        return {"kind": int(part.kind), "shape": part.shape, "group": part.group, "tensors": tensors}

    def _write(self, content: bytes | memoryview) -> None:
        view = memoryview(content)
        _write_all(self._file, view)
        self._place += len(view)
        while len(view):
            step = view[: _PIECE - self._hashed]
            self._hash.update(step)
            self._hashed += len(step)
            view = view[len(step) :]
            if self._hashed == _PIECE:
                self._pieces.append(self._hash.hexdigest())
                self._hash, self._hashed = hashlib.sha256(), 0


_PARTIAL = ".partial"


def remove_leftovers(folder: Path) -> None:
    """Removes what a process that was killed has left."""
    for path in folder.glob(f".*{SUFFIX}.*{_PARTIAL}"):
        # Not what is being written, is another user's, or was finished or removed by a start beside this one.
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _mapped(mapped: mmap.mmap, start: int, part: dict[str, Any]) -> PackedTensors:
    """``start``: of the mapping in the file."""
    tensors = []
    for place, dtype, shape in part["tensors"]:
        empty = torch.empty(shape, dtype=_DTYPES[dtype], device="meta")
        if empty.numel():
            flat = torch.frombuffer(mapped, dtype=empty.dtype, count=empty.numel(), offset=place - start)
            tensors.append(flat.view(shape))
        else:
            tensors.append(torch.empty(shape, dtype=empty.dtype))
    outputs, inputs = part["shape"]
    codes, scales, factors = tensors
    return PackedTensors(Kind(part["kind"]), (outputs, inputs), part["group"], codes, scales, factors)


def _need_owner(found: os.stat_result) -> None:
    """Raises ``PermissionError`` for a file that another user could have written."""
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise PermissionError(f"it belongs to user {found.st_uid}, or others may write to it")


def _write_all(file: Any, content: bytes | memoryview) -> None:
    view = memoryview(content)
    while len(view):
        view = view[file.write(view) :]


def _sha256(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).digest()
