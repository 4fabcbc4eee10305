"""An uploaded form (multipart/form-data) as it arrives: its files are spooled, its texts may be changed before it is
sent on.

It is written anew, with the same parts in the same order: whatever a server's parser would have made of the form as it
came, it gets what the gateway has read.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property

from starlette.types import Receive

from gateway.errors import BadRequest
from gateway.media import MediaKind
from gateway.metering.audio_seconds import THINNEST, THOROUGH, seconds_of
from gateway.server.headers import RequestHeaders
from gateway.web.body import body_pieces
from gateway.web.form_parser import Event, FormParser, PartBegins, PartData
from gateway.web.spool import Section, Spool

MOST_TEXT = 2**20
"""Bytes of all texts together."""
_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]{1,100}", re.ASCII)
_KIND = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,60}", re.ASCII)


@dataclass(slots=True)
class TextPart:
    name: str
    text: str


@dataclass(slots=True)
class FilePart:
    name: str
    filename: str
    kind: str
    """Its content type."""
    start: int
    end: int


class UploadedForm:
    """What ``gateway.apis.Form`` describes. Close it when the request has ended."""

    def __init__(self) -> None:
        self.parts_read: list[TextPart | FilePart] = []
        self.seconds = 0.0
        self.unmeasured: str | None = None
        self._spool = Spool()
        self._boundary = f"tollgate-{secrets.token_hex(16)}"
        self._text = bytearray()
        self._texts_size = 0

    async def take(self, event: Event) -> None:
        """Raises ``BadRequest``."""
        if isinstance(event, PartBegins):
            self._begin(event)
        elif isinstance(event, PartData):
            if isinstance(self.parts_read[-1], FilePart):
                await self._spool.write(event.data)
            else:
                self._add_text(event.data)
        else:
            self._end()

    @property
    def files(self) -> list[FilePart]:
        return [part for part in self.parts_read if isinstance(part, FilePart)]

    @property
    def texts(self) -> dict[str, list[str]]:
        """The values of each field that is no file, in order."""
        found: dict[str, list[str]] = {}
        for part in self.parts_read:
            if isinstance(part, TextPart):
                found.setdefault(part.name, []).append(part.text)
        return found

    @property
    def content_type(self) -> str:
        return f"multipart/form-data; boundary={self._boundary}"

    @cached_property
    def unread(self) -> tuple[MediaKind, ...]:
        return tuple(dict.fromkeys("audio" if file.name == "file" else "image" for file in self.files))

    def listen(self) -> None:
        """Find out how long its sound is. Takes up to a second for two hours of it, and so is for a thread."""
        for file in self.files:
            section = Section(self._spool, file.start, file.end)
            told = seconds_of(section, most=THOROUGH)
            if told is None:
                self.unmeasured = file.filename
            self.seconds += section.size / THINNEST if told is None else told

    def size(self, texts: Mapping[str, Sequence[str]]) -> int:
        return sum(
            len(head) + (part.end - part.start if isinstance(part, FilePart) else 0)
            for head, part in self._written(texts)
        )

    async def parts(self, texts: Mapping[str, Sequence[str]]) -> AsyncIterator[bytes]:
        for head, part in self._written(texts):
            yield head
            if isinstance(part, FilePart):
                async with aclosing(self._spool.pieces(part.start, part.end)) as pieces:
                    async for piece in pieces:
                        yield piece

    def close(self) -> None:
        self._spool.close()

    def _written(self, texts: Mapping[str, Sequence[str]]) -> list[tuple[bytes, TextPart | FilePart | None]]:
        """What goes before each part, its text included. Fields that the form has not come last."""
        left = {name: [*values] for name, values in texts.items()}
        delimiter = f"--{self._boundary}\r\n".encode()
        written: list[tuple[bytes, TextPart | FilePart | None]] = []
        before = b""
        for part in self.parts_read:
            if isinstance(part, FilePart):
                shown = part.filename.replace('"', "%22").encode("utf-8", "replace")
                head = (
                    b'content-disposition: form-data; name="%b"; filename="%b"\r\ncontent-type: %b\r\n\r\n'
                    % (
                        part.name.encode(),
                        shown,
                        part.kind.encode(),
                    )
                )
            else:
                values = left.get(part.name)
                head = _field(part.name, values.pop(0) if values else part.text)
            written.append((before + delimiter + head, part))
            before = b"\r\n"
        for name, values in left.items():
            for value in values:
                written.append((before + delimiter + _field(name, value), None))
                before = b"\r\n"
        return [*written, (before + f"--{self._boundary}--\r\n".encode(), None)]

    def _begin(self, event: PartBegins) -> None:
        if not _NAME.fullmatch(event.name):
            raise BadRequest(
                "A part of the form has a name with other characters than letters, digits and _ . - [ ].",
                code="invalid_form",
            )
        if event.filename is None:
            self.parts_read.append(TextPart(event.name, ""))
            self._text = bytearray()
            return
        kind = event.content_type if _KIND.fullmatch(event.content_type) else "application/octet-stream"
        start = self._spool.size
        self.parts_read.append(FilePart(event.name, event.filename, kind, start, start))

    def _add_text(self, data: bytes) -> None:
        self._text += data
        self._texts_size += len(data)
        if self._texts_size > MOST_TEXT:
            name = self.parts_read[-1].name
            raise BadRequest(
                f"The fields of the form have more than {MOST_TEXT} bytes, the last of them '{name}'. Send what is "
                "long as a file.",
                param=name,
                code="string_above_max_length",
            )

    def _end(self) -> None:
        part = self.parts_read[-1]
        if isinstance(part, FilePart):
            part.end = self._spool.size
            return
        try:
            part.text = self._text.decode()
        except UnicodeDecodeError:
            raise BadRequest(
                f"The field '{part.name}' is not UTF-8.", param=part.name, code="invalid_form"
            ) from None


async def receive_form(headers: RequestHeaders, receive: Receive, limit: int) -> UploadedForm:
    """Raises as ``body_pieces`` does, and ``BadRequest`` for what is no form; nothing is left of it then."""
    parser = FormParser(headers.get(b"content-type", b""))
    form = UploadedForm()
    try:
        async for piece in body_pieces(headers, receive, limit):
            for event in parser.feed(piece):
                await form.take(event)
        parser.end()
    except BaseException:
        form.close()
        raise
    return form


def _field(name: str, text: str) -> bytes:
    return b'content-disposition: form-data; name="%b"\r\n\r\n%b' % (
        name.encode(),
        text.encode("utf-8", "replace"),
    )
