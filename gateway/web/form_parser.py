"""``multipart/form-data`` (RFC 7578) as it arrives: nothing is held but what python-multipart needs of one piece."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors import BadRequest

MAX_PARTS = 32
MAX_HEADERS = 8
"""Of a part."""
MAX_HEADER = 4096
"""Bytes of one."""
_NAME = re.compile(r"[^/\\]*\Z")
_LONGEST_NAME = 255
_SILENT = logging.Logger("python_multipart", logging.CRITICAL)
"""The parser warns of each body that it refuses, and anyone can send such."""


@dataclass(frozen=True, slots=True)
class PartBegins:
    name: str
    filename: str | None
    """Without folders and control characters; None for a field that is no file."""
    content_type: str = ""
    """As it came."""


@dataclass(frozen=True, slots=True)
class PartData:
    data: bytes


@dataclass(frozen=True, slots=True)
class PartEnds:
    """The part that began last."""


Event = PartBegins | PartData | PartEnds


class FormParser:
    """Feed it a body piece by piece; it raises ``BadRequest`` for what is no form, or has too many parts or headers."""

    def __init__(self, content_type: bytes) -> None:
        """``content_type`` is the header's value, which has the boundary."""
        kind, options = parse_options_header(content_type.decode("latin-1"))
        if kind != b"multipart/form-data":
            raise BadRequest(
                "The body should be a form with a file: send 'content-type: multipart/form-data; boundary=…', as "
                "OpenAI's SDKs and curl -F do.",
                code="invalid_content_type",
            )
        boundary = options.get(b"boundary", b"")
        if not boundary:
            raise _broken("its content-type names no boundary")
        self._delimiter = b"\r\n--" + boundary
        self._delimiters = 0
        self._events: list[Event] = []
        self._parts = 0
        self._header = b""
        self._value = b""
        self._disposition = self._kind = b""
        self._complete = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._part_begins,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_ends,
                    "on_headers_finished": self._headers_end,
                    "on_part_data": self._part_data,
                    "on_part_end": self._part_ends,
                    "on_end": self._ends,
                },
                max_header_count=MAX_HEADERS,
                max_header_size=MAX_HEADER,
            )
        except FormParserError as error:
            raise _broken(str(error)) from None
        self._parser.logger = _SILENT

    def feed(self, piece: bytes) -> Sequence[Event]:
        """What begins, comes or ends in ``piece``, in order."""
        # A boundary followed by anything costs the parser a step in Python, and its sender a few bytes.
        self._delimiters += piece.count(self._delimiter)
        if self._delimiters > MAX_PARTS:
            raise _too_many()
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise _broken(str(error)) from None
        events, self._events = self._events, []
        return events

    def end(self) -> None:
        """The body is over. Raises ``BadRequest`` where the form is not."""
        if not self._complete:
            raise _broken("its last boundary is missing")

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _too_many()
        self._disposition = self._kind = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_ends(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        elif self._header.lower() == b"content-type":
            self._kind = self._value
        self._header = self._value = b""

    def _headers_end(self) -> None:
        kind, options = parse_options_header(self._disposition.decode("latin-1"))
        if kind != b"form-data" or b"name" not in options:
            raise _broken("a part has no name")
        filename = options.get(b"filename")
        self._events.append(
            PartBegins(
                _text(options[b"name"]),
                None if filename is None else label_of(_text(filename)),
                self._kind.decode("latin-1"),
            )
        )

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(PartData(data[start:end]))

    def _part_ends(self) -> None:
        self._events.append(PartEnds())

    def _ends(self) -> None:
        self._complete = True


def label_of(filename: str) -> str:
    """A file's name as it may be shown: its last component, printable, and not too long."""
    match = _NAME.search(filename.replace("%22", '"'))
    name = "".join(char for char in (match[0] if match else "") if char.isprintable()).strip()
    return name[:_LONGEST_NAME] or "file"


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _too_many() -> BadRequest:
    return BadRequest(
        f"The form has more than {MAX_PARTS} parts. Send no others than the API asks for.",
        code="too_many_parts",
    )


def _broken(why: str) -> BadRequest:
    return BadRequest(f"The body is not a form as its content-type says: {why}.", code="invalid_form")
