"""GGUF files: their metadata, and their tensors, mapped from disk.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The header is not read by the gguf
package's reader, which takes seconds for a vocabulary and does not detect truncated files; only the numbers of types
and their block sizes are that package's. A model in several files (``name-00001-of-00003.gguf``) is one.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.errors import ModelUnavailable, UnsupportedModel

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""By the number of the value's type."""
_STRING, _ARRAY = 8, 9
_MAX_DEPTH = 4
"""The most dimensions of a tensor, and nested arrays."""
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor in the file."""

    type: GGMLQuantizationType
    shape: tuple[int, ...]
    """Outermost dimension first, as in torch; the file has the reverse order."""
    data: np.ndarray
    """uint8 [outer dimensions …, bytes of a row]"""


class Gguf:
    """Raises ``ModelUnavailable`` if a file cannot be read, ``UnsupportedModel`` for unknown versions and types."""

    def __init__(self, path: Path, *, texts: bool = True) -> None:
        """``texts``: whether lists of strings are read, such as a vocabulary of 300,000: else they are empty."""
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        self._maps: list[mmap.mmap] = []
        for part in parts(path):
            header = _Header(part, texts)
            self._maps.append(header.mapped)
            # The first part has all metadata; the others repeat some of it.
            self.metadata = header.metadata | self.metadata
            self.tensors |= header.tensors
        self.architecture = str(self.metadata.get("general.architecture", "(none named)"))

    def release(self) -> None:
        """Lets go of the pages that were read, which the system keeps as long as it has room."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)

    def value(self, key: str, default: Any = None) -> Any:
        """A value that belongs to the architecture, such as ``block_count``."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


def parts(path: Path) -> list[Path]:
    """The files of the model that ``path`` is a part of. Raises ``ModelUnavailable`` if one is missing."""
    found = _PART.fullmatch(path.name)
    if found is None:
        return [path]
    count = int(found[3])
    paths = [path.with_name(f"{found[1]}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise ModelUnavailable(
            f"{path} is one of {count} files, and {', '.join(missing[:3])} is not beside it."
        )
    return paths


class _Header:
    def __init__(self, path: Path, texts: bool) -> None:
        self._path = path
        self._texts = texts
        self._place = 0
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelUnavailable(f"{path} cannot be read: {error}.") from error
        self.mapped = self._bytes
        if self._take(4) != _MAGIC:
            raise ModelUnavailable(f"{path} is not a GGUF file: it does not begin with 'GGUF'.")
        (version,) = self._unpack("I")
        if version not in _VERSIONS:
            known = " and ".join(map(str, _VERSIONS))
            swapped = version & 0xFFFF == 0
            what = "a big-endian GGUF file" if swapped else f"a GGUF file of version {version}"
            raise UnsupportedModel(f"{path} is {what}; little-endian ones of versions {known} are read.")
        tensors, values = self._unpack("QQ")
        self.metadata = {self._string(): self._value(*self._unpack("I")) for _ in self._count(values, 13)}
        infos = [self._info() for _ in self._count(tensors, 24)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelUnavailable(f"{path} is broken: its alignment is {alignment!r}.")
        start = -(-self._place // alignment) * alignment
        self.tensors = {name: self._stored(name, start + offset, *rest) for name, offset, *rest in infos}

    def _take(self, count: int) -> bytes:
        taken = self._bytes[self._place : self._place + count]
        if len(taken) < count or self._place > len(self._bytes):
            raise self._broken_off()
        self._place += count
        return taken

    def _broken_off(self) -> ModelUnavailable:
        return ModelUnavailable(
            f"{self._path} breaks off after {len(self._bytes)} bytes, or is damaged. Is the download whole?"
        )

    def _unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))

    def _count(self, count: int, least: int) -> range:
        """As many times; each takes ``least`` bytes, so that a damaged number does not run away."""
        if count * least > len(self._bytes) - self._place:
            raise self._broken_off()
        return range(count)

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        return self._take(length).decode("utf-8", "replace")

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._unpack(_SCALARS[kind])[0]
        if kind != _ARRAY or depth == _MAX_DEPTH:
            raise ModelUnavailable(f"{self._path} is damaged: it has a value of the unknown type {kind}.")
        inner, count = self._unpack("IQ")
        if inner in _SCALARS:
            form = np.dtype(f"<{_SCALARS[inner]}") if inner != 7 else np.dtype(bool)
            self._count(count, form.itemsize)
            return np.frombuffer(self._take(count * form.itemsize), form).tolist()
        if inner == _STRING:
            return self._strings(count)
        return [self._value(inner, depth + 1) for _ in self._count(count, 8)]

    def _strings(self, count: int) -> list[str]:
        """As ``_string``, so many times: a vocabulary and its merges are 300,000."""
        found, content, place, length_at = [], self._bytes, self._place, struct.Struct("<Q").unpack_from
        last, texts = len(content) - 8, self._texts
        for _ in self._count(count, 8):
            if place > last:
                raise self._broken_off()
            (length,) = length_at(content, place)
            place += 8
            if texts:
                found.append(content[place : place + length].decode("utf-8", "replace"))
            place += length
        self._place = place
        self._take(0)
        return found

    def _info(self) -> tuple[str, int, int, tuple[int, ...]]:
        """Name, offset, type and shape."""
        name = self._string()
        (dimensions,) = self._unpack("I")
        if dimensions > _MAX_DEPTH:
            raise ModelUnavailable(f"{self._path} is damaged: the tensor {name} has {dimensions} dimensions.")
        *shape, kind, offset = self._unpack(f"{dimensions}QIQ")
        return name, offset, kind, tuple(reversed(shape))

    def _stored(self, name: str, start: int, kind: int, shape: tuple[int, ...]) -> GgufTensor:
        try:
            type_ = GGMLQuantizationType(kind)
        except ValueError as error:
            raise UnsupportedModel(
                f"The tensor {name} in {self._path} is of the unknown type {kind}."
            ) from error
        block, size = GGML_QUANT_SIZES[type_]
        *outer, row = shape or (1,)
        if row % block:
            raise ModelUnavailable(
                f"{self._path} is damaged: the tensor {name} has rows of {row}, which are no blocks of {type_.name}."
            )
        shape_in_bytes = (*outer, row // block * size)
        count = math.prod(shape_in_bytes)
        if start + count > len(self._bytes):
            raise self._broken_off()
        data = np.frombuffer(self._bytes, np.uint8, count, start).reshape(shape_in_bytes)
        return GgufTensor(type_, (*outer, row), data)
