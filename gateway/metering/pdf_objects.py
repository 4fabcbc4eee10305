"""The objects of a PDF, found by its cross-references (ISO 32000-1, section 7.5), in the file or packed in others."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from itertools import accumulate

from gateway.metering.encoded_file import EncodedFile

_MOST_SECTIONS = 16
"""Of cross-references: one for each time that the file was added to."""
_MOST_SUBSECTIONS = 128
"""Of all its tables and streams together."""
_MOST_PACKED = 2**19
"""Bytes of one stream."""
_OBJECT = 2**16
"""Bytes of an object that are looked at."""
_SHORT = 2**10
"""Bytes that are read of one first: most are shorter."""

_START = re.compile(rb"startxref\s{1,8}(\d{1,10})")
_TABLE = re.compile(rb"\s{0,8}xref\s{1,8}")
_SUBSECTION = re.compile(rb"\s{0,8}(\d{1,10})\s{1,4}(\d{1,10})\s{1,4}")
_NUMBERED = re.compile(rb"\s{0,8}(\d{1,10})\s{1,4}\d{1,5}\s{1,4}obj")
_STREAM = re.compile(rb"stream\r?\n")
_ENTRY = 20
"""Bytes of an entry of a table."""


Reader = Callable[[int, int], bytes]
"""From an offset on, so many bytes."""


class Broken(Exception):
    """The file is not as the standard has it."""


class Unpacking:
    """How much may still be unpacked and looked at, of all files of a request: their size says nothing of it."""

    def __init__(self, left: int = 2**20, looks: int = 2048) -> None:
        self._left = left
        self._looks = looks

    def unpack(self, data: bytes) -> bytes:
        """As much as may be."""
        if self._left <= 0:
            raise Broken
        unpacked = zlib.decompressobj().decompress(data, self._left)
        self._left -= len(unpacked)
        return unpacked

    def look(self, size: int) -> None:
        """Raises ``Broken`` where so many bytes of an object are too many."""
        self._looks -= max(1, size // _SHORT)
        if self._looks < 0:
            raise Broken


def number_of(text: bytes, name: bytes) -> int | None:
    found = re.search(rb"/" + name + rb"\s{0,8}(\d{1,10})(?!\d|\s{1,8}\d{1,10}\s{1,8}R)", text)
    return int(found[1]) if found else None


def _numbers(text: bytes, name: bytes) -> list[int] | None:
    found = re.search(rb"/" + name + rb"\s{0,8}\[([\d\s]{1,4096})\]", text)
    return [int(one) for one in found[1].split()] if found else None


def reference_of(text: bytes, name: bytes) -> int | None:
    found = re.search(rb"/" + name + rb"\s{1,8}(\d{1,10})\s{1,8}\d{1,5}\s{1,8}R", text)
    return int(found[1]) if found else None


class Objects:
    """The objects of a file, found by its cross-references."""

    def __init__(self, file: EncodedFile, start: int, unpacking: Unpacking) -> None:
        self._file, self._start, self._unpacking = file, start, unpacking
        self._subsections = 0
        self._streams: dict[int, tuple[bytes, list[int]]] = {}
        """What was unpacked, by the object's number."""
        self._sections = [*self._read_sections()]

    @property
    def trailers(self) -> list[bytes]:
        """The newest first."""
        return [trailer for trailer, _ in self._sections]

    def _read(self, at: int, size: int) -> bytes:
        return self._file.read(self._start + at, size)

    def _read_sections(self) -> Iterator[tuple[bytes, _Table | _Packed]]:
        """Each section's trailer and entries, the newest first."""
        tail = self._file.read(max(0, self._file.size - 2048), 2048)
        found = [*_START.finditer(tail)]
        waiting = [int(found[-1][1])] if found else []
        seen: set[int] = set()
        while waiting and len(seen) < _MOST_SECTIONS:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            trailer, entries = self._section(at)
            yield trailer, entries
            # A table may have a stream of its own beside it, which comes before what is older.
            others = (number_of(trailer, name) for name in (b"Prev", b"XRefStm"))
            waiting += [other for other in others if other is not None]

    def _section(self, at: int) -> tuple[bytes, _Table | _Packed]:
        text = self._read(at, 64)
        if (begun := _TABLE.match(text)) is None:
            trailer = self._numbered(at)
            packed = _Packed(trailer, self._unpacked(at, trailer))
            self._count_subsections(packed.subsections)
            return trailer, packed
        at += begun.end()
        parts: list[tuple[int, int, int]] = []
        while (found := _SUBSECTION.match(self._read(at, 64))) is not None:
            self._count_subsections(1)
            first, count = int(found[1]), int(found[2])
            parts.append((first, count, at + found.end()))
            at += found.end() + _ENTRY * count
        trailer = self._read(at, _OBJECT // 16)
        if b"trailer" not in trailer[:32]:
            raise Broken
        return trailer.partition(b"startxref")[0], _Table(parts)

    def _count_subsections(self, more: int) -> None:
        self._subsections += more
        if self._subsections > _MOST_SUBSECTIONS:
            raise Broken

    def _numbered(self, at: int, number: int | None = None) -> bytes:
        """What is written of the object that begins at ``at``, without its stream."""
        size, text = _SHORT, b""
        while b"endobj" not in text and b"stream" not in text and size <= _OBJECT:
            self._unpacking.look(size)
            text = self._read(at, size)
            size *= 4
        begun = _NUMBERED.match(text)
        if begun is None or number not in (None, int(begun[1])):
            raise Broken
        text = text[begun.end() :].partition(b"endobj")[0]
        return _STREAM.split(text, 1)[0]

    def _unpacked(self, at: int, written: bytes) -> bytes:
        """The stream of the object that begins at ``at``."""
        begun = _STREAM.search(self._read(at, _OBJECT))
        if begun is None or b"/FlateDecode" not in written:
            raise Broken
        size = min(number_of(written, b"Length") or _MOST_PACKED, _MOST_PACKED)
        return self._unpacking.unpack(self._read(at + begun.end(), size))

    def object(self, number: int) -> bytes:
        """What is written of the object of that number, without its stream. Raises ``Broken``."""
        for _, entries in self._sections:
            if (place := entries.find(number, self._read)) is None:
                continue
            at, within = place
            return self._numbered(at, number) if within is None else self._in_stream(at, within, number)
        raise Broken

    def _in_stream(self, stream: int, index: int, number: int) -> bytes:
        """The object of that number, the ``index``-th of those that another one packs together."""
        if stream not in self._streams:
            self._streams[stream] = self._stream(stream)
        data, listed = self._streams[stream]
        if listed[2 * index] != number:
            raise Broken
        begins = listed[2 * index + 1]
        ends = listed[2 * index + 3] if 2 * index + 3 < len(listed) else len(data)
        text = data[begins : min(ends, begins + _OBJECT)]
        self._unpacking.look(len(text))
        return text

    def _stream(self, number: int) -> tuple[bytes, list[int]]:
        """Packed objects, and the number of each and where it begins."""
        for _, entries in self._sections:
            place = entries.find(number, self._read)
            if place is not None and place[1] is None:
                written = self._numbered(place[0], number)
                data = self._unpacked(place[0], written)
                first = number_of(written, b"First") or 0
                return data[first:], [int(one) for one in data[: min(first, _OBJECT // 2)].split()]
        raise Broken


_Place = tuple[int, int | None]
"""Where an object is: its offset; or the number of the object that packs it, and its index there."""


class _Table:
    """Entries as text: of each part the first number, how many there are, and where they begin."""

    def __init__(self, parts: list[tuple[int, int, int]]) -> None:
        self._parts = parts

    def find(self, number: int, read: Reader) -> _Place | None:
        for first, count, at in self._parts:
            if first <= number < first + count:
                entry = read(at + _ENTRY * (number - first), _ENTRY)
                if entry[17:18] == b"n":
                    return int(entry[:10]), None
        return None


class _Packed:
    """Entries as a stream of columns of bytes."""

    def __init__(self, written: bytes, data: bytes) -> None:
        widths = _numbers(written, b"W")
        if widths is None or len(widths) != 3 or not 0 < sum(widths) <= 32 or not widths[1]:
            raise Broken
        self._widths = widths
        self._index = _numbers(written, b"Index") or [0, number_of(written, b"Size") or 0]
        self.subsections = len(self._index) // 2
        self._rows = _rows(data, sum(widths), number_of(written, b"Predictor") or 1)

    def find(self, number: int, read: Reader) -> _Place | None:
        row = 0
        for first, count in zip(self._index[::2], self._index[1::2], strict=False):
            if first <= number < first + count:
                kind, place, more = self._fields(row + number - first)
                return (place, None) if kind == 1 else (place, more) if kind == 2 else None
            row += count
        return None

    def _fields(self, row: int) -> tuple[int, int, int]:
        entry = bytes(column[row] & 0xFF for column in self._rows)
        one, two, _ = self._widths
        kind = int.from_bytes(entry[:one], "big") if one else 1
        return kind, int.from_bytes(entry[one : one + two], "big"), int.from_bytes(entry[one + two :], "big")


def _rows(data: bytes, width: int, predictor: int) -> list[list[int] | bytes]:
    """The columns of entries of ``width`` bytes, of which the lowest eight bits count."""
    if predictor == 1:
        return [data[column::width] for column in range(width)]
    # PNG's "up", which all writers use: a byte is the difference from the one above it.
    if set(data[:: width + 1]) != {2}:
        raise Broken
    return [[*accumulate(data[column :: width + 1])] for column in range(1, width + 1)]
