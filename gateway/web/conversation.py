"""The conversation that a request of the Responses API continues, out of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.errors import BadRequest, UpstreamUnavailable
from gateway.stores.responses import ResponseStore, StoredResponse
from gateway.stores.store import StoreDown
from gateway.types import Json
from gateway.wire.responses import ids
from gateway.wire.responses.body_to_request import ResponseRequest, unknown_response
from gateway.wire.responses.items import Item

UNFINISHED = ("queued", "in_progress")
CALLS = ("function_call", "custom_tool_call")


@dataclass(frozen=True, slots=True)
class Conversation:
    """What came before a request."""

    items: Sequence[Item] = ()
    before: Sequence[str] = ()
    """The ids of the responses that it consists of, oldest first."""
    size: int = 0
    """Bytes that it takes in the store."""


async def recall(
    store: ResponseStore | None,
    tenant: str,
    asked: ResponseRequest,
    *,
    most_items: int,
    most_bytes: int,
) -> tuple[ResponseRequest, Conversation]:
    """``asked``, with the items that it refers to, and what it continues.

    Raises ``BadRequest`` for what is not there, or has more items or bytes; and ``UpstreamUnavailable``.
    """
    try:
        asked = await _resolved(store, tenant, asked)
        found = await _continued(store, tenant, asked, most_bytes)
    except StoreDown as error:
        raise store_down(error) from error
    count = len(found.items) + len(asked.items)
    if count > most_items:
        raise BadRequest(
            f"The conversation has {count} items, and this gateway takes {most_items}. Compact it with "
            "/v1/responses/compact.",
            param="input",
            code="array_above_max_length",
        )
    return asked, found


def store_down(error: StoreDown) -> UpstreamUnavailable:
    return UpstreamUnavailable(f"Stored responses cannot be reached now. {error}", retry_after=1.0)


async def all_items(store: ResponseStore, tenant: str, record: StoredResponse) -> list[Item]:
    """The whole input of a response: the conversation before it, as far as it is still there, and its own.

    Raises ``StoreDown``.
    """
    before = await store.find_all(tenant, record.before)
    return [*(item for one in before if one is not None for item in _items_of(one)), *record.items]


async def _continued(
    store: ResponseStore | None, tenant: str, asked: ResponseRequest, most_bytes: int
) -> Conversation:
    previous = asked.previous
    if previous is None:
        return Conversation()
    record = await store.find(tenant, previous) if store is not None else None
    if store is None or record is None:
        raise unknown_response(previous, "previous_response_id")
    if record.response["status"] in UNFINISHED:
        raise BadRequest(
            f"The response '{previous}' is still being made. Wait until its status is 'completed'.",
            param="previous_response_id",
            code="response_not_finished",
        )
    if record.size > most_bytes:  # as it would be if the caller sent it
        raise BadRequest(
            f"The conversation has {record.size} bytes, and this gateway takes {most_bytes}. Compact it with "
            "/v1/responses/compact, or begin anew.",
            param="previous_response_id",
            code="conversation_too_large",
        )
    earlier = await store.find_all(tenant, record.before)
    for name, one in zip(record.before, earlier, strict=True):
        if one is None:
            raise unknown_response(name, "previous_response_id")
    before = [*record.before, previous]
    await store.touch(tenant, before)
    records = [*(one for one in earlier if one is not None), record]
    return Conversation([item for one in records for item in _items_of(one)], before, record.size)


def _items_of(record: StoredResponse) -> list[Item]:
    """What it brings to a conversation: without calls that were broken off, which nobody can answer."""
    said = record.response["output"]
    whole = [one for one in said if one["type"] not in CALLS or one["status"] == "completed"]
    return [*record.items, *whole]


async def _resolved(store: ResponseStore | None, tenant: str, asked: ResponseRequest) -> ResponseRequest:
    """With the items themselves in place of references to them."""
    wanted = {str(item["id"]): i for i, item in enumerate(asked.items) if item["type"] == "item_reference"}
    if not wanted:
        return asked
    owners = {name: ids.response_of(name) for name in wanted}
    responses = list({owner for owner in owners.values() if owner is not None})
    records = await store.find_all(tenant, responses) if store is not None else []
    known: dict[Json, Item] = {
        item["id"]: item for record in records if record is not None for item in _items_of(record)
    }
    for name, index in wanted.items():
        if name not in known:
            raise BadRequest(
                f"Item with id '{name[:80]}' not found. It was not stored, was deleted, or is older than this gateway "
                "keeps it. Send the item itself.",
                param=f"input[{index}]",
                code="item_not_found",
            )
    return replace(asked, items=[_referred(item, known) for item in asked.items])


def _referred(item: Item, known: Mapping[Json, Item]) -> Item:
    return known[item["id"]] if item["type"] == "item_reference" else item
