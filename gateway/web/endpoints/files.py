"""``/v1/files``: what callers upload, and what batches have written, for their tenant alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from urllib.parse import quote

import orjson
from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from gateway.errors import BadRequest, NotFound
from gateway.files.file_table import FileMissing, StoredFile
from gateway.files.stored_files import StoredFiles, Upload
from gateway.types import Json
from gateway.web.body import body_pieces, cancel_on_disconnect, declared_length
from gateway.web.context import RequestContext
from gateway.web.counted import counted
from gateway.web.form_parser import (
    MAX_HEADER,
    MAX_HEADERS,
    MAX_PARTS,
    Event,
    FormParser,
    PartBegins,
    PartData,
)
from gateway.web.sending import Headers, send_body
from gateway.wire.openai import files as wire

FORM_BYTES = MAX_PARTS * MAX_HEADERS * MAX_HEADER
"""That a form may have beside its file."""
FIELD_BYTES = 4096
NAME = "files"
"""Under which limits know these requests."""


class Files:
    """https://platform.openai.com/docs/api-reference/files. All raise ``NotFound`` where the policy has them off."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET and POST."""
        async with counted(scope, NAME) as headers:
            if scope["method"] == "POST":
                file = await _uploaded(scope, receive)
                await send_body(send, orjson.dumps(wire.write_file(file)), headers=headers)
            else:
                await send_body(send, orjson.dumps(await _page(scope)), headers=headers)


class File:
    """GET and DELETE."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = scope["path_params"]["file_id"]
        async with counted(scope, NAME) as headers:
            if scope["method"] == "DELETE":
                if not await _store(scope).delete(_tenant(scope), wanted):
                    raise _not_found(wanted)
                await send_body(send, orjson.dumps(wire.write_deleted(wanted)), headers=headers)
            else:
                file = await _found(scope, wanted)
                await send_body(send, orjson.dumps(wire.write_file(file)), headers=headers)


class FileContent:
    """As it was uploaded: a browser is to save it, never to show it as a page of this server's."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = scope["path_params"]["file_id"]
        async with counted(scope, NAME) as headers:
            file = await _found(scope, wanted)
            try:
                cancel_on_disconnect(scope)
                async with aclosing(_store(scope).read(file.tenant, wanted)) as pieces:
                    await _send_content(send, file, pieces, headers)
            except FileMissing:
                raise _not_found(wanted) from None


async def _uploaded(scope: Scope, receive: Receive) -> StoredFile:
    store, caller = _store(scope), RequestContext.of(scope).caller()
    headers = RequestContext.of(scope).headers
    form = FormParser(headers.get(b"content-type", b""))
    most, length = store.bounds.file_bytes, declared_length(headers)
    if length is not None and b"content-encoding" not in headers:
        most = min(most, length)
    received = _Received(store, caller.tenant, caller.key_id, most)
    try:
        async for piece in body_pieces(headers, receive, store.bounds.file_bytes + FORM_BYTES):
            for event in form.feed(piece):
                await received.take(event)
        form.end()
        return await received.finish()
    finally:
        await received.abort()


class _Received:
    """What has come of a form. Its file is written as it comes, whatever is known of it by then: fields may follow."""

    def __init__(self, store: StoredFiles, tenant: str, key_id: str, most: int) -> None:
        self._store = store
        self._tenant = tenant
        self._key_id = key_id
        self._most = most
        self._upload: Upload | None = None
        self._filename = ""
        self._fields: dict[str, str] = {}
        self._name = ""
        """Of the field that is coming, whose value is ``_value``; that is None while the file comes."""
        self._value: bytearray | None = None

    async def take(self, event: Event) -> None:
        """Raises ``BadRequest``."""
        if isinstance(event, PartBegins):
            self._name, self._value = event.name, bytearray() if event.filename is None else None
            if event.filename is not None:
                await self._begin(event.name, event.filename)
        elif isinstance(event, PartData):
            await self._add(event.data)
        elif self._value is not None:
            self._fields[self._name] = self._value.decode("utf-8", "replace")

    async def finish(self) -> StoredFile:
        """Raises ``BadRequest``."""
        asked = wire.read_fields(self._fields)
        if self._upload is None:
            raise BadRequest(
                "'file' is a required property: a part with that name and a filename.",
                param="file",
                code="missing_required_parameter",
            )
        return await self._upload.finish(self._filename, asked.purpose, expires_after=asked.expires_after)

    async def abort(self) -> None:
        """Unless it is finished nothing is left of it."""
        if self._upload is not None:
            await self._upload.abort()

    async def _begin(self, name: str, filename: str) -> None:
        if self._upload is not None or name != "file":
            raise BadRequest(
                f"'{name[:40]}' is a second file, or not named 'file'. Send one file in each request.",
                param="file",
                code="invalid_value",
            )
        if "purpose" in self._fields:
            wire.check_purpose(self._fields["purpose"])
        self._filename = filename
        self._upload = await self._store.begin(self._tenant, key_id=self._key_id, most=self._most)

    async def _add(self, data: bytes) -> None:
        if self._value is not None:
            self._value += data
            if len(self._value) > FIELD_BYTES:
                raise BadRequest(
                    f"The field '{self._name[:40]}' has more than {FIELD_BYTES} bytes.",
                    param=self._name[:40],
                    code="string_above_max_length",
                )
        elif self._upload is not None:
            await self._upload.write(data)


async def _page(scope: Scope) -> dict[str, Json]:
    query = wire.read_list_query(QueryParams(scope["query_string"]))
    found = await _store(scope).listed(
        _tenant(scope),
        purpose=query.purpose,
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.order == "desc",
    )
    return wire.write_page(found[: query.limit], more=len(found) > query.limit)


async def _send_content(send: Send, file: StoredFile, pieces: AsyncIterator[bytes], headers: Headers) -> None:
    """The head with the first piece: until there is one an error can still be told. Raises ``FileMissing``."""
    begun = False
    async for piece in pieces:
        if not begun:
            begun = True
            await send(
                {"type": "http.response.start", "status": 200, "headers": _content_head(file, headers)}
            )
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    if not begun:
        await send({"type": "http.response.start", "status": 200, "headers": _content_head(file, headers)})
    await send({"type": "http.response.body", "body": b""})


def _content_head(file: StoredFile, headers: Headers) -> Headers:
    # RFC 6266; the name in ASCII is for clients that know no other.
    plain = "".join(char if char.isascii() and char not in '"\\%' else "_" for char in file.filename)
    name = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(file.filename, safe='')}"
    return [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", b"%d" % file.bytes),
        (b"content-disposition", name.encode()),
        (b"x-content-type-options", b"nosniff"),
        *headers,
    ]


def _store(scope: Scope) -> StoredFiles:
    files = RequestContext.of(scope).runtime.files
    if files is None:
        raise NotFound("This gateway keeps no files: its policy has 'files.enabled: false'.")
    return files


def _tenant(scope: Scope) -> str:
    return RequestContext.of(scope).caller().tenant


async def _found(scope: Scope, id: str) -> StoredFile:
    file = await _store(scope).find(_tenant(scope), id)
    if file is None:
        raise _not_found(id)
    return file


def _not_found(id: str) -> NotFound:
    return NotFound(f"No such File object: {id[:80]}", param="id")
