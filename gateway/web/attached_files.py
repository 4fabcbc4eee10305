"""Files that a conversation names by their id, out of the caller's own that ``/v1/files`` keeps: their content goes
in place of the id, as no model's server knows the gateway's."""

from __future__ import annotations

from base64 import b64encode
from binascii import b2a_base64
from collections.abc import Iterator, Mapping
from dataclasses import replace
from mimetypes import guess_type

from gateway.errors import BadRequest, BodyTooLarge
from gateway.files.file_table import FileMissing, StoredFile
from gateway.files.stored_files import StoredFiles, is_file_id
from gateway.types import ChatRequest, Json
from gateway.web.heavy_reads import Reading

_KEYS: Mapping[str, str] = {"file": "file_data", "image_url": "url"}
"""Parts that may name a file, and where their content is."""
_UNKNOWN = "application/octet-stream"


async def attach(
    request: ChatRequest, files: StoredFiles | None, tenant: str, reading: Reading, *, most_bytes: int
) -> ChatRequest:
    """``request`` with the content of ``tenant``'s files, of ``most_bytes`` together, which is ``reading``'s.

    An id that is none of the gateway's is left to the model's server where that may know it. Raises ``BadRequest`` for
    one that is nobody's or another's, ``BodyTooLarge``, ``UpstreamUnavailable``, ``Overloaded``.
    """
    named: dict[str, tuple[StoredFile, str]] = {}
    for where, kind, file_id in _named(request):
        if is_file_id(file_id):
            # Each time that it is named it is sent.
            if file_id not in named:
                named[file_id] = await _found(files, tenant, file_id, where), where
            most_bytes -= named[file_id][0].bytes
            if most_bytes < 0:
                raise _too_large(where)
        elif kind == "image_url":
            raise _no_file(where, file_id)
    if not named or files is None:
        return request
    await reading.add(sum(file.bytes for file, _ in named.values()) * 4 // 3)
    urls = {name: await _read(files, file, where, reading) for name, (file, where) in named.items()}
    messages = [_attached(message, urls) for message in request.messages or ()]
    return replace(request, messages=tuple(messages))


def _named(request: ChatRequest) -> Iterator[tuple[str, str, str]]:
    """The path, the type of the part, and the id."""
    for i, message in enumerate(request.messages or ()):
        content = message.get("content")
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if (found := _id_in(part)) is not None:
                yield f"messages[{i}].content[{j}].{found[0]}.file_id", *found


def _id_in(part: Json) -> tuple[str, str] | None:
    match part:
        case {"type": "file" | "image_url" as kind, **fields}:
            held = fields.get(kind)
            file_id = held.get("file_id") if isinstance(held, Mapping) else None
            return (kind, file_id) if isinstance(file_id, str) else None
    return None


async def _found(files: StoredFiles | None, tenant: str, file_id: str, where: str) -> StoredFile:
    file = await files.find(tenant, file_id) if files is not None else None
    if file is None:
        raise _no_file(where, file_id)
    return file


async def _read(files: StoredFiles, file: StoredFile, where: str, reading: Reading) -> str:
    """The file as a data URL. A little at a time: the event loop is everybody's.

    The text grows in place, as CPython does where nobody else holds it: to join 40 MB of pieces would be one step of
    90 ms and more, nearly all of it first touches of new memory.
    """
    url = ""
    rest = b""
    try:
        async for piece in files.read(file.tenant, file.id):
            if not url:
                url = f"data:{_type(file, piece)};base64,"
            rest += piece
            whole = len(rest) - len(rest) % 3
            url += b2a_base64(memoryview(rest)[:whole], newline=False).decode()
            rest = rest[whole:]
            await reading.turn()
    except FileMissing:
        raise _no_file(where, file.id) from None
    if not url:
        url = f"data:{_type(file, b'')};base64,"
    url += b64encode(rest).decode()
    return url


def _type(file: StoredFile, begins: bytes) -> str:
    return guess_type(file.filename)[0] or ("application/pdf" if begins.startswith(b"%PDF-") else _UNKNOWN)


def _attached(message: Mapping[str, Json], urls: Mapping[str, str]) -> Mapping[str, Json]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_with_content(part, urls) for part in content]}


def _with_content(part: Json, urls: Mapping[str, str]) -> Json:
    found = _id_in(part)
    if found is None or found[1] not in urls:
        return part
    kind, file_id = found
    held = {name: value for name, value in part[kind].items() if name != "file_id"}
    return {**part, kind: {**held, _KEYS[kind]: urls[file_id]}}


def _no_file(where: str, file_id: str) -> BadRequest:
    return BadRequest(
        f"'{where}' names no file of yours: '{file_id[:64]}'. Upload it to /v1/files, or send its content as a data "
        "URL.",
        param=where,
        code="invalid_value",
    )


def _too_large(where: str) -> BodyTooLarge:
    return BodyTooLarge(
        f"'{where}' names a file that is too large beside what else the request attaches. Send fewer or smaller files.",
        param=where,
    )
