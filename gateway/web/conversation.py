"""The conversation that a request of the Responses API continues, out of the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from gateway.errors import BadRequest, UpstreamUnavailable
from gateway.stores.response_store import KeptResponse, Piece, ResponseStore
from gateway.stores.store import StoreDown
from gateway.types import Json
from gateway.web.heavy_reads import SMALL, Reading
from gateway.wire.responses import ids
from gateway.wire.responses.body_to_request import ResponseRequest, unknown_response
from gateway.wire.responses.items import Item

UNFINISHED = ("queued", "in_progress")
CALLS = ("function_call", "custom_tool_call")
MARKED = 8
"""What it takes to look where pieces lie, in bytes that are only read: they are parsed, one by one."""
_MARKS = 2**15
"""Bytes of them that are parsed at a time, if there are no more of one record."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What came before a request."""

    items: Sequence[Item] = ()
    before: Sequence[str] = ()
    """The ids of the responses that it consists of, oldest first."""
    size: int = 0
    """Bytes that it takes in the store."""
    residency: frozenset[str] | None = None
    """The regions in which all of it stays, and what is referred to; None: anywhere."""


async def recall(
    store: ResponseStore | None,
    tenant: str,
    asked: ResponseRequest,
    reading: Reading,
    *,
    most_items: int,
    most_bytes: int,
) -> tuple[ResponseRequest, Conversation]:
    """``asked``, with the items that it refers to, and what it continues. What that takes is ``reading``'s.

    Raises ``BadRequest`` for what is not there, or has more items or bytes; ``UpstreamUnavailable``, ``Overloaded``.
    """
    try:
        asked, referred, residency = await _resolved(store, tenant, asked, reading, most_bytes)
        found = await _continued(
            *(store, tenant, asked, reading),
            most_items=most_items - len(asked.items),
            most_bytes=most_bytes - referred,
        )
    except StoreDown as error:
        raise store_down(error) from error
    if residency is not None:
        residency = residency if found.residency is None else residency & found.residency
        found = replace(found, residency=residency)
    return asked, found


def store_down(error: StoreDown) -> UpstreamUnavailable:
    return UpstreamUnavailable(f"Stored responses cannot be reached now. {error}", retry_after=1.0)


async def pieces_of(records: Iterable[KeptResponse], reading: Reading) -> list[tuple[KeptResponse, Piece]]:
    """What they bring to a conversation, a little at a time."""
    found: list[tuple[KeptResponse, Piece]] = []
    unpaid = 0
    for one in records:
        unpaid += one.marks
        if unpaid > _MARKS:
            await reading.turn()
            unpaid = 0
        found += [(one, piece) for piece in _pieces_of(one)]
    return found


async def _continued(
    store: ResponseStore | None,
    tenant: str,
    asked: ResponseRequest,
    reading: Reading,
    *,
    most_items: int,
    most_bytes: int,
) -> Conversation:
    previous = asked.previous
    if previous is None:
        _check_count(0, most_items, len(asked.items))
        return Conversation()
    last = await store.find(tenant, previous) if store is not None else None
    if store is None or last is None:
        raise unknown_response(previous, "previous_response_id")
    if last.status in UNFINISHED:
        raise BadRequest(
            f"The response '{previous}' is still being made. Wait until its status is 'completed'.",
            param="previous_response_id",
            code="response_not_finished",
        )
    if last.size > most_bytes:  # as it would be if the caller sent it
        raise _too_large(last.size, most_bytes, "previous_response_id")
    records: list[KeptResponse] = []
    for name, one in zip(last.before, await store.find_all(tenant, last.before), strict=True):
        if one is None:
            raise unknown_response(name, "previous_response_id")
        records.append(one)
    records.append(last)
    await reading.add(MARKED * sum(one.marks for one in records))
    _check_count(len(await pieces_of(records, reading)), most_items, len(asked.items))
    await reading.add(last.size)
    before = [*last.before, previous]
    await store.touch(tenant, before)
    items: list[Item] = []
    for one in records:
        whole = await store.whole(tenant, one)
        if whole is None:
            raise unknown_response(one.id, "previous_response_id")
        one, content = whole
        items += await _parsed(content, _pieces_of(one), reading)
    return Conversation(items, before, last.size, _residency(records))


def _residency(records: Iterable[KeptResponse]) -> frozenset[str] | None:
    """The regions in which all of them stay."""
    within: frozenset[str] | None = None
    for one in records:
        if one.residency is not None:
            within = one.residency if within is None else within & one.residency
    return within


def _check_count(before: int, most: int, own: int) -> None:
    if before > most:
        raise BadRequest(
            f"The conversation has {before + own} items, and this gateway takes {most + own}. Compact it with "
            "/v1/responses/compact.",
            param="input",
            code="array_above_max_length",
        )


def _too_large(size: int, most: int, param: str) -> BadRequest:
    return BadRequest(
        f"The conversation has {size} bytes, and this gateway takes {most}. Compact it with "
        "/v1/responses/compact, or begin anew.",
        param=param,
        code="conversation_too_large",
    )


def _pieces_of(kept: KeptResponse) -> list[Piece]:
    """What it brings to a conversation: without calls that were broken off, which nobody can answer."""
    whole = [one for one in kept.said if one.type not in CALLS or one.status == "completed"]
    return [*kept.items, *whole]


async def _parsed(content: bytes, pieces: Sequence[Piece], reading: Reading) -> list[Item]:
    """A little at a time: the event loop is everybody's."""
    items: list[Item] = []
    unpaid = 0
    for piece in pieces:
        unpaid += piece.size
        if unpaid > SMALL:
            await reading.turn()
            unpaid = 0
        items.append(orjson.loads(memoryview(content)[piece.start : piece.end]))
    return items


async def _resolved(
    store: ResponseStore | None, tenant: str, asked: ResponseRequest, reading: Reading, most_bytes: int
) -> tuple[ResponseRequest, int, frozenset[str] | None]:
    """With the items themselves in place of references to them; how many bytes they have, and where they stay."""
    references = [str(item["id"]) for item in asked.items if item["type"] == "item_reference"]
    if not references:
        return asked, 0, None
    wanted = {str(item["id"]): i for i, item in enumerate(asked.items) if item["type"] == "item_reference"}
    owners = dict.fromkeys(filter(None, map(ids.response_of, wanted)))
    found = await store.find_all(tenant, list(owners)) if store is not None else []
    records = [one for one in found if one is not None]
    await reading.add(MARKED * sum(one.marks for one in records))
    pieces = {
        piece.id: (one, piece) for one, piece in await pieces_of(records, reading) if piece.id in wanted
    }
    for name, index in wanted.items():
        if name not in pieces:
            raise _no_item(name, index)
    # Each time that it is named it is sent.
    size = sum(pieces[name][1].size for name in references)
    if size > most_bytes:
        raise _too_large(size, most_bytes, "input")
    of_record: dict[str, tuple[KeptResponse, list[Piece]]] = {}
    for one, piece in pieces.values():
        of_record.setdefault(one.id, (one, []))[1].append(piece)
    await reading.add(sum(one.own for one, _ in of_record.values()))
    known: dict[Json, Item] = {}
    for one, some in of_record.values():
        whole = await store.whole(tenant, one) if store is not None else None
        if whole is None:
            raise _no_item(some[0].id, wanted[some[0].id])
        anew, content = whole
        if anew is not one:
            names = {piece.id for piece in some}
            some = [piece for piece in _pieces_of(anew) if piece.id in names]
        items = await _parsed(content, some, reading)
        known.update((piece.id, item) for piece, item in zip(some, items, strict=True))
    residency = _residency(one for one, _ in of_record.values())
    return replace(asked, items=[_referred(item, known) for item in asked.items]), size, residency


def _no_item(name: str, index: int) -> BadRequest:
    return BadRequest(
        f"Item with id '{name[:80]}' not found. It was not stored, was deleted, or is older than this gateway "
        "keeps it. Send the item itself.",
        param=f"input[{index}]",
        code="item_not_found",
    )


def _referred(item: Item, known: Mapping[Json, Item]) -> Item:
    return known[item["id"]] if item["type"] == "item_reference" else item
