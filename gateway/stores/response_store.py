"""Responses of the Responses API that are kept, with what was asked: a record for each, found by its tenant alone.

A record is kept under two keys: what it consists of, and its pieces as JSON, one after the other. A page of a
conversation is cut out of them, and nobody parses megabytes to know an id or a status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
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
    residency: Sequence[str] | None = None
    """The regions in which it stays, whoever continues it; None: anywhere."""


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


class KeptResponse:
    """What a record consists of; ``content`` is read by itself (``ResponseStore.whole``).

    A conversation may have 10,000 items, or turns: its lists are parsed where they are asked for, and ``marks`` says
    how many bytes those of its pieces have.
    """

    def __init__(self, head: bytes) -> None:
        facts, self._before, self._said, self._items = head.split(b"\n", 3)
        known = orjson.loads(facts)
        self.id: str = known["id"]
        self.status: str = known["status"]
        self.background: bool = known["background"]
        self.own: int = known["own"]
        """Bytes of its content."""
        self.size: int = known["size"] + self.own
        """Bytes of the records of those before, and of its own."""
        residency: list[str] | None = known.get("residency")
        self.residency = None if residency is None else frozenset(residency)
        """The regions in which it stays."""
        self.bare: int = known["bare"]
        """Bytes of the response without its output."""
        self.marks = len(self._said) + len(self._items)

    @cached_property
    def before(self) -> Sequence[str]:
        found: list[str] = orjson.loads(self._before)
        return found

    @cached_property
    def said(self) -> Sequence[Piece]:
        """The output."""
        return list(_placed(orjson.loads(self._said), self.bare))

    @cached_property
    def items(self) -> Sequence[Piece]:
        """Of its own input."""
        return list(_placed(orjson.loads(self._items), self.said[-1].end if self.said else self.bare))

    def response(self, content: bytes) -> bytes:
        """As its caller got it."""
        output = content[self.bare : self.said[-1].end] if self.said else b""
        said = b",".join(output[one.start - self.bare : one.end - self.bare] for one in self.said)
        return b"".join((_BARE, said, content[len(_BARE) : self.bare]))

    def pieces(self) -> Sequence[Piece]:
        return (*self.items, *self.said)

    @property
    def answered(self) -> int:
        """Bytes of the response."""
        return self.said[-1].end if self.said else self.bare


AT_ONCE = 50
"""Records that are looked at before the event loop runs on."""
HEAD, CONTENT = "response", "content"
"""The kinds of keys."""
_AGAIN = 5
"""Times that a record is read which is put anew meanwhile."""


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

    async def _kept(self, tenant: str, value: bytes) -> KeptResponse | None:
        if b"\n" not in value:  # all in one, as before 0.3
            known = orjson.loads(value)
            if "response" not in known:
                return None
            record = StoredResponse(**known)
            await self.put(tenant, record)
            value = _pieces(record)[0]
        return KeptResponse(value)

    async def content(self, tenant: str, kept: KeptResponse) -> bytes | None:
        """None where it has just gone, or is another's by now. Raises ``StoreDown``."""
        content = await self.store.get(_key(tenant, kept.id, CONTENT))
        return content if content is not None and len(content) == kept.own else None

    async def whole(self, tenant: str, kept: KeptResponse) -> tuple[KeptResponse, bytes] | None:
        """``kept`` and its content; None where it has just gone. Raises ``StoreDown``.

        One in the background may be put anew between the two. Then it is another ``kept``, whose pieces lie elsewhere.
        """
        for _ in range(_AGAIN):
            if (content := await self.content(tenant, kept)) is not None:
                return kept, content
            found = await self.find(tenant, kept.id)
            if found is None:
                break
            kept = found
        return None

    async def record(self, tenant: str, kept: KeptResponse) -> StoredResponse | None:
        """As it was put. Raises ``StoreDown``."""
        whole = await self.whole(tenant, kept)
        if whole is None:
            return None
        kept, content = whole
        items = [orjson.loads(content[one.start : one.end]) for one in kept.items]
        residency = None if kept.residency is None else sorted(kept.residency)
        response = orjson.loads(kept.response(content))
        return StoredResponse(response, items, kept.before, kept.size - kept.own, residency)

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
        """One that was deleted is, too. Raises ``StoreDown``."""
        flags = [_key(tenant, response, kind) for kind in ("cancel", "deleted")]
        return any(flag is not None for flag in await self._flags.get_all(flags))

    async def delete_unfinished(self, tenant: str, response: str) -> None:
        """Likewise; and it is not to be ``put_back``. ``delete`` it then. Raises ``StoreDown``."""
        await self._flags.put({_key(tenant, response, "deleted"): b"1"}, self._ttl)

    async def put_back(self, tenant: str, record: StoredResponse) -> bool:
        """As ``put``, of one that was put before: nothing is kept of what was deleted since. Raises ``StoreDown``."""
        name = record.response["id"]
        if await self._is_deleted(tenant, name) or not await self.put(tenant, record):
            return False
        if await self._is_deleted(tenant, name):  # in the meantime
            await self.delete(tenant, name)
            return False
        return True

    async def _is_deleted(self, tenant: str, response: str) -> bool:
        return await self._flags.get(_key(tenant, response, "deleted")) is not None


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
    content = b"".join((bare, *said, *items))
    facts = {
        "id": response["id"],
        "status": response["status"],
        "background": bool(response.get("background")),
        "size": record.size,
        "bare": len(bare),
        "own": len(content),
    }
    if record.residency is not None:
        facts["residency"] = record.residency
    lines = (facts, record.before, _marks(response["output"], said), _marks(record.items, items))
    return b"\n".join(map(orjson.dumps, lines)), content


def _marks(items: Sequence[dict[str, Any]], pieces: Sequence[bytes]) -> list[tuple[Any, ...]]:
    return [
        (item.get("id"), item["type"], item.get("status"), len(piece))
        for item, piece in zip(items, pieces, strict=True)
    ]


def _placed(marks: Sequence[Sequence[Any]], start: int) -> Iterator[Piece]:
    for name, kind, status, length in marks:
        yield Piece(name, kind, status, start, start + length)
        start += length
