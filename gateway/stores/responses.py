"""Responses of the Responses API that are kept, with what was asked: a record for each, found by its tenant alone.

A record is kept under two keys: what it consists of, and its pieces as JSON, one after the other. A page of a
conversation is cut out of them, and nobody parses megabytes to know an id or a status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from gateway.stores.store import Store

_BARE = b'{"output":['
"""How a response begins in the store, without its output, which is beside it."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    response: dict[str, Any]
    """As its caller got it."""
    items: Sequence[dict[str, Any]]
    """Of its own input, with their ids."""
    before: Sequence[str] = ()
    """The ids of the responses that it continues, oldest first."""
    size: int = 0
    """Bytes of the records of those."""


class Piece(NamedTuple):
    """One item of a record, and where it lies in its content."""

    id: str
    type: str
    status: str | None
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """What a record consists of; ``content`` is read by itself (``ResponseStore.content``)."""

    id: str
    status: str
    background: bool
    before: Sequence[str]
    size: int
    """Bytes of the records of those before, and of its own."""
    bare: int
    """Bytes of the response without its output."""
    said: Sequence[Piece]
    """The output."""
    items: Sequence[Piece]
    own: int
    """Bytes of its content."""

    def response(self, content: bytes) -> bytes:
        """As its caller got it."""
        output = content[self.bare : self.said[-1].end] if self.said else b""
        said = b",".join(output[one.start - self.bare : one.end - self.bare] for one in self.said)
        return b"".join((_BARE, said, content[len(_BARE) : self.bare]))

    @property
    def answered(self) -> int:
        """Bytes of the response."""
        return self.said[-1].end if self.said else self.bare


AT_ONCE = 50
"""Records that are looked at before the event loop runs on."""
HEAD, CONTENT = "response", "content"
"""The kinds of keys."""


class ResponseStore:
    """Responses by tenant and id, each for ``ttl`` seconds from when it was last stored or continued."""

    def __init__(self, store: Store, *, ttl: float, max_entry: int, flags: Store | None = None) -> None:
        """``max_entry`` is in bytes, of a record as JSON.

        ``flags`` is where it is left that a response is to be cancelled, if not in ``store``: whoever makes it looks
        there each second.
        """
        self.store = store
        self._flags = store if flags is None else flags
        self._ttl = ttl
        self._max_entry = max_entry

    async def put(self, tenant: str, record: StoredResponse) -> bool:
        """Whether it is kept: not if it is too long. Raises ``StoreDown``."""
        head, content = _pieces(record)
        if len(content) > self._max_entry:
            return False
        name = record.response["id"]
        await self.store.put({_key(tenant, name): head, _key(tenant, name, CONTENT): content}, self._ttl)
        return True

    async def find(self, tenant: str, response: str) -> KeptResponse | None:
        """Raises ``StoreDown``."""
        return (await self.find_all(tenant, [response]))[0]

    async def find_all(self, tenant: str, responses: Sequence[str]) -> list[KeptResponse | None]:
        """Raises ``StoreDown``."""
        found = await self.store.get_all([_key(tenant, response) for response in responses])
        kept: list[KeptResponse | None] = []
        for number, value in enumerate(found, 1):
            kept.append(None if value is None else await self._kept(tenant, value))
            if not number % AT_ONCE:
                await asyncio.sleep(0)
        return kept

    async def _kept(self, tenant: str, value: bytes) -> KeptResponse:
        head = orjson.loads(value)
        if "response" in head:  # all in one, as before 0.3
            record = StoredResponse(**head)
            await self.put(tenant, record)
            head = orjson.loads(_pieces(record)[0])
        return _kept(head)

    async def content(self, tenant: str, kept: KeptResponse) -> bytes | None:
        """None where it has just gone. Raises ``StoreDown``."""
        content = await self.store.get(_key(tenant, kept.id, CONTENT))
        return content if content is not None and len(content) == kept.own else None

    async def record(self, tenant: str, kept: KeptResponse) -> StoredResponse | None:
        """As it was put. Raises ``StoreDown``."""
        content = await self.content(tenant, kept)
        if content is None:
            return None
        items = [orjson.loads(content[one.start : one.end]) for one in kept.items]
        return StoredResponse(orjson.loads(kept.response(content)), items, kept.before, kept.size - kept.own)

    async def touch(self, tenant: str, responses: Sequence[str]) -> None:
        """A conversation lives as long as it goes on. Raises ``StoreDown``."""
        keys = [_key(tenant, response, kind) for response in responses for kind in (HEAD, CONTENT)]
        await self.store.touch(keys, self._ttl)

    async def delete(self, tenant: str, response: str) -> None:
        """Raises ``StoreDown``."""
        await self.store.delete(_key(tenant, response))
        await self.store.delete(_key(tenant, response, CONTENT))

    async def ask_to_cancel(self, tenant: str, response: str) -> None:
        """Whichever process works on it is to stop. Raises ``StoreDown``."""
        await self._flags.put({_key(tenant, response, "cancel"): b"1"}, self._ttl)

    async def is_to_cancel(self, tenant: str, response: str) -> bool:
        """Raises ``StoreDown``."""
        return await self._flags.get(_key(tenant, response, "cancel")) is not None


def _key(tenant: str, response: str, kind: str = HEAD) -> str:
    # A tenant's name can hold a colon but no space: no tenant can spell out another's key.
    return f"{kind}:{tenant} {response}"


def _pieces(record: StoredResponse) -> tuple[bytes, bytes]:
    """What a record consists of, and its content."""
    response = record.response
    bare = orjson.dumps(
        {"output": [], **{name: value for name, value in response.items() if name != "output"}}
    )
    said, items = [list(map(orjson.dumps, part)) for part in (response["output"], record.items)]
    head = {
        "id": response["id"],
        "status": response["status"],
        "background": bool(response.get("background")),
        "before": record.before,
        "size": record.size,
        "bare": len(bare),
        "said": _marks(response["output"], said),
        "items": _marks(record.items, items),
    }
    return orjson.dumps(head), b"".join((bare, *said, *items))


def _marks(items: Sequence[dict[str, Any]], pieces: Sequence[bytes]) -> list[tuple[Any, ...]]:
    return [
        (item.get("id"), item["type"], item.get("status"), len(piece))
        for item, piece in zip(items, pieces, strict=True)
    ]


def _kept(head: dict[str, Any]) -> KeptResponse:
    said = list(_placed(head["said"], head["bare"]))
    items = list(_placed(head["items"], said[-1].end if said else head["bare"]))
    own = (items or said)[-1].end if items or said else head["bare"]
    return KeptResponse(
        *(head["id"], head["status"], head["background"], head["before"], head["size"] + own),
        *(head["bare"], said, items, own),
    )


def _placed(marks: Sequence[Sequence[Any]], start: int) -> Iterator[Piece]:
    for name, kind, status, length in marks:
        yield Piece(name, kind, status, start, start + length)
        start += length
