"""How many pages a PDF has: its trailer names the catalogue, that the tree of pages (ISO 32000-1, sections 7.5 and
7.7.3). The tree says their count, and readers go by its leaves: both are looked at, the leaves up to a bound of work.

What is encrypted, broken or laid out otherwise has no count, and whoever asks takes a bound instead.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

from gateway.metering.encoded_file import EncodedFile
from gateway.metering.pdf_objects import Broken, Objects, Unpacking, number_of, reference_of

MOST_PAGES = 10_000
"""No provider takes more."""
_DEEPEST = 64
_HEAD = 1024
_STRING = re.compile(rb"\((?:[^()\\]|\\.)*\)", re.DOTALL)
_ESCAPED = re.compile(rb"#([0-9a-fA-F]{2})")
_KIDS = re.compile(rb"/Kids\s{0,8}\[((?:\s{0,8}\d{1,10}\s{1,8}\d{1,5}\s{1,8}R)*)\s{0,8}\]")
_REFERENCE = re.compile(rb"(\d+)\s+\d+\s+R")


@dataclass(frozen=True, slots=True)
class PageCount:
    number: int
    """What the file says, or more where more was found."""
    certain: bool
    """Whether all of them were looked at; else there may be any number."""


def pages_of(file: EncodedFile, unpacking: Unpacking) -> PageCount | None:
    """None where that cannot be told."""
    head = file.read(0, _HEAD)
    start = head.find(b"%PDF-")
    if start < 0:
        return None
    said = _linear(head, file.size - start)
    try:
        pages = _Tree(Objects(file, start, unpacking)).pages()
    except (Broken, zlib.error, ValueError, IndexError):
        pages = PageCount(0, certain=False)
    number = min(MOST_PAGES, max(pages.number, said or 0))
    return PageCount(number, pages.certain) if number else None


def _linear(head: bytes, size: int) -> int | None:
    """Of a file made for the web, to which nothing was added since."""
    if b"/Linearized" not in head or number_of(head, b"L") != size:
        return None
    return number_of(head, b"N")


class _Tree:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._certain = True
        self._counted: dict[int, int] = {}
        """Leaves below each node, by its number."""

    def pages(self) -> PageCount:
        """Raises ``Broken``."""
        trailers = [self._plain(trailer) for trailer in self._objects.trailers]
        root = next((root for trailer in trailers if (root := reference_of(trailer, b"Root"))), None)
        if root is None or any(b"/Encrypt" in trailer for trailer in trailers):
            raise Broken
        tree = reference_of(self._plain(self._objects.object(root)), b"Pages")
        if tree is None:
            raise Broken
        said = number_of(self._plain(self._objects.object(tree)), b"Count")
        counted = self._leaves(tree, _DEEPEST)
        return PageCount(max(counted, said or 0), self._certain and said is not None)

    def _leaves(self, number: int, depth: int) -> int:
        """At or below the node of that number, which counts as often as it is named; one that names itself is none."""
        if number not in self._counted:
            self._counted[number] = 0
            self._counted[number] = self._looked_at(number, depth)
        return self._counted[number]

    def _looked_at(self, number: int, depth: int) -> int:
        try:
            text = self._plain(self._objects.object(number))
        except (Broken, zlib.error, ValueError, IndexError):
            self._certain = False
            return 1
        if b"/Kids" not in text:
            return 1
        found = _KIDS.search(text)
        if found is None or text.count(b"/Kids") > 1 or not depth:
            self._certain = False
            return 1
        kids = [int(kid) for kid in _REFERENCE.findall(found[1])]
        return min(MOST_PAGES, sum(self._leaves(kid, depth - 1) for kid in kids))

    def _plain(self, text: bytes) -> bytes:
        """Without strings and escapes, in which words may stand that are none; what is unusual makes it uncertain."""
        text = _STRING.sub(b"", text)
        if b"#" in text:
            text = _ESCAPED.sub(lambda code: bytes([int(code[1], 16)]), text)
        if any(mark in text for mark in (b"%", b"(", b")")) or text.count(b"<<") != text.count(b">>"):
            self._certain = False
        return text
