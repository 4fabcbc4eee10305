"""How many pages a PDF has, by what it says itself: its trailer names the catalogue, that the tree of pages, and that
their count (ISO 32000-1, sections 7.5 and 7.7.3).

Only those few objects are looked at, and unpacked up to a bound. What is encrypted, broken or laid out otherwise has no
count, and whoever asks takes a bound instead.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from itertools import accumulate

from gateway.metering.encoded_file import EncodedFile

MOST_PAGES = 10_000
_MOST_SECTIONS = 16
"""Of cross-references: one for each time that the file was added to."""
_MOST_SUBSECTIONS = 128
"""Of all its tables together."""
_MOST_PACKED = 2**19
"""Bytes of one stream."""
_OBJECT = 2**16
"""Bytes of an object that are looked at."""
_HEAD = 1024

_START = re.compile(rb"startxref\s{1,8}(\d{1,10})")
_TABLE = re.compile(rb"\s{0,8}xref\s{1,8}")
_SUBSECTION = re.compile(rb"\s{0,8}(\d{1,10})\s{1,4}(\d{1,10})\s{1,4}")
_NUMBERED = re.compile(rb"\s{0,8}(\d{1,10})\s{1,4}\d{1,5}\s{1,4}obj")
_STREAM = re.compile(rb"stream\r?\n")
_ENTRY = 20
"""Bytes of an entry of a table."""


Reader = Callable[[int, int], bytes]
"""From an offset on, so many bytes."""


class _Broken(Exception):
    """The file is not as the standard has it."""


class Unpacking:
    """How much may still be unpacked, of all files of a request together: its packed bytes say nothing of it."""

    def __init__(self, left: int = 2**20) -> None:
        self._left = left

    def unpack(self, data: bytes) -> bytes:
        """As much as may be."""
        if self._left <= 0:
            raise _Broken
        unpacked = zlib.decompressobj().decompress(data, self._left)
        self._left -= len(unpacked)
        return unpacked


def pages_of(file: EncodedFile, unpacking: Unpacking) -> int | None:
    """None where that cannot be told."""
    head = file.read(0, _HEAD)
    start = head.find(b"%PDF-")
    if start < 0:
        return None
    try:
        pages = _linear(head, file.size - start) or _Objects(file, start, unpacking).pages()
    except (_Broken, zlib.error, ValueError, IndexError):
        return None
    return pages if pages is not None and 0 < pages <= MOST_PAGES else None


def _linear(head: bytes, size: int) -> int | None:
    """Of a file made for the web, to which nothing was added since."""
    if b"/Linearized" not in head or _number(head, b"L") != size:
        return None
    return _number(head, b"N")


def _number(text: bytes, name: bytes) -> int | None:
    found = re.search(rb"/" + name + rb"\s{0,8}(\d{1,10})(?!\d|\s{1,8}\d{1,10}\s{1,8}R)", text)
    return int(found[1]) if found else None


def _numbers(text: bytes, name: bytes) -> list[int] | None:
    found = re.search(rb"/" + name + rb"\s{0,8}\[([\d\s]{1,4096})\]", text)
    return [int(one) for one in found[1].split()] if found else None


def _reference(text: bytes, name: bytes) -> int | None:
    found = re.search(rb"/" + name + rb"\s{1,8}(\d{1,10})\s{1,8}\d{1,5}\s{1,8}R", text)
    return int(found[1]) if found else None


class _Objects:
    """The objects of a file, found by its cross-references."""

    def __init__(self, file: EncodedFile, start: int, unpacking: Unpacking) -> None:
        self._file, self._start, self._unpacking = file, start, unpacking
        self._subsections = 0
        self._sections = [*self._read_sections()]

    def pages(self) -> int | None:
        root = next((root for trailer, _ in self._sections if (root := _reference(trailer, b"Root"))), None)
        if root is None or any(b"/Encrypt" in trailer for trailer, _ in self._sections):
            return None
        tree = _reference(self._object(root), b"Pages")
        return None if tree is None else _number(self._object(tree), b"Count")

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
            others = (_number(trailer, name) for name in (b"Prev", b"XRefStm"))
            waiting += [other for other in others if other is not None]

    def _section(self, at: int) -> tuple[bytes, _Table | _Packed]:
        text = self._read(at, 64)
        if (begun := _TABLE.match(text)) is None:
            trailer = self._numbered(at)
            return trailer, _Packed(trailer, self._unpacked(at, trailer))
        at += begun.end()
        parts: list[tuple[int, int, int]] = []
        while (found := _SUBSECTION.match(self._read(at, 64))) is not None:
            self._subsections += 1
            if self._subsections > _MOST_SUBSECTIONS:
                raise _Broken
            first, count = int(found[1]), int(found[2])
            parts.append((first, count, at + found.end()))
            at += found.end() + _ENTRY * count
        trailer = self._read(at, _OBJECT // 16)
        if b"trailer" not in trailer[:32]:
            raise _Broken
        return trailer.partition(b"startxref")[0], _Table(parts)

    def _numbered(self, at: int) -> bytes:
        """What is written of the object that begins at ``at``, without its stream."""
        text = self._read(at, _OBJECT)
        begun = _NUMBERED.match(text)
        if begun is None:
            raise _Broken
        text = text[begun.end() :].partition(b"endobj")[0]
        return _STREAM.split(text, 1)[0]

    def _unpacked(self, at: int, written: bytes) -> bytes:
        """The stream of the object that begins at ``at``."""
        begun = _STREAM.search(self._read(at, _OBJECT))
        if begun is None or b"/FlateDecode" not in written:
            raise _Broken
        size = min(_number(written, b"Length") or _MOST_PACKED, _MOST_PACKED)
        return self._unpacking.unpack(self._read(at + begun.end(), size))

    def _object(self, number: int) -> bytes:
        for _, entries in self._sections:
            if (place := entries.find(number, self._read)) is None:
                continue
            at, within = place
            return self._numbered(at) if within is None else self._in_stream(at, within, number)
        raise _Broken

    def _in_stream(self, stream: int, index: int, number: int) -> bytes:
        """The object of that number, the ``index``-th of those that another one packs together."""
        for _, entries in self._sections:
            place = entries.find(stream, self._read)
            if place is not None and place[1] is None:
                written = self._numbered(place[0])
                data = self._unpacked(place[0], written)
                first = _number(written, b"First") or 0
                listed = data[:first].split()
                if int(listed[2 * index]) != number:
                    raise _Broken
                begins = first + int(listed[2 * index + 1])
                ends = first + int(listed[2 * index + 3]) if 2 * index + 3 < len(listed) else len(data)
                return data[begins : min(ends, begins + _OBJECT)]
        raise _Broken


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
            raise _Broken
        self._widths = widths
        self._index = _numbers(written, b"Index") or [0, _number(written, b"Size") or 0]
        self._rows = _rows(data, sum(widths), _number(written, b"Predictor") or 1)

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
        raise _Broken
    return [[*accumulate(data[column :: width + 1])] for column in range(1, width + 1)]
