"""``/admin/api/requests``: the newest requests that fit a filter, and the receipt of each."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Annotated, Any

from pydantic import Field

from gateway.admin.api.operation import operation
from gateway.admin.api.usage import Moment
from gateway.admin.endpoint import Handle, Request, Strict, Told
from gateway.admin.site import Site, ledger_database, unreadable
from gateway.databases.database import DatabaseError
from gateway.errors import BadRequest, NotFound, Overloaded
from gateway.metering.price import NANO
from gateway.observe.ledger.request_search import FoundRequests, Outcome, RequestFilter, find_requests
from gateway.observe.receipts import DO as RECEIPT
from gateway.stores.store import StoreDown
from gateway.web.operation import Operation


class RequestsQuery(Strict):
    since: Moment | None = None
    until: Moment | None = None
    tenant: str | None = None
    key: str | None = None
    model: str | None = None
    """As it was asked for, or as it answered."""
    backend: str | None = None
    status: Annotated[int, Field(ge=100, le=599)] | None = None
    error: str | None = None
    """The code of why it failed."""
    failed: bool | None = None
    """With a status from 500 on: what the objectives call failed."""
    outcome: Outcome | None = None
    """``answered`` by a model or ``cached``; ``failed`` as above, ``limited`` (429), ``refused`` (any other 4xx), or
    the client has ``left``."""
    min_seconds: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    user: Annotated[str, Field(pattern="^[0-9a-f]{16}$")] | None = None
    """An end user's hash, as the ledger has it."""
    tag: Annotated[str, Field(pattern="^[A-Za-z0-9._:/@+=-]{1,64}$")] | None = None
    finish_reason: Annotated[str, Field(max_length=64)] | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    after: Annotated[str, Field(pattern=r"^[0-9]{1,11}(\.[0-9]{1,9})?_[A-Za-z0-9_.-]{1,128}$")] | None = None
    """The ``next`` of the page before."""


class FoundRequest(Told):
    id: str
    created: float
    tenant: str
    key: str
    tier: str
    model: str
    answered_model: str | None = None
    backend: str | None = None
    target_model: str | None = None
    status: int
    error: str | None = None
    stream: bool
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    estimated: bool
    cached: bool
    """A cache answered it."""
    usd: float
    seconds: float
    attempts: int
    user_agent: str = ""
    first_token: float | None = None
    """Seconds."""
    inter_token: float | None = None
    """Mean seconds between two tokens of a stream."""
    finish_reason: str = ""
    model_refused: bool = False
    """The model, or its provider's filter, would not answer."""
    answer_tokens: int = 0
    end_user: str = ""
    """A hash."""
    tags: tuple[str, ...] = ()
    experiment: str = ""
    arm: str = ""
    score: float | None = None


class Requests(Told):
    requests: list[FoundRequest]
    next: str | None = None
    """For ``after``; there may be more where ``requests`` is short or empty."""
    searched_to: float | None = None
    """One search looks at 50,000 requests at most. Where that was not all: how far back it came, in Unix time."""


class FoundReceipt(Told):
    request: FoundRequest | None = None
    """The ledger's row."""
    receipt: dict[str, Any] | None = None
    """What each stage decided, for an hour."""


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    async def search(request: Request, where: RequestFilter, limit: int, after: str | None) -> FoundRequests:
        ledger = ledger_database(request.context, site)
        created, _, name = (after or "").partition("_")
        try:
            begin = (float(created), name) if after else None
            return await asyncio.to_thread(find_requests, ledger, where, limit=limit, after=begin)
        except DatabaseError as error:
            raise unreadable(ledger, error) from None
        except OverflowError:
            raise BadRequest("'after' is not a page's 'next'.", param="after", code="invalid_value") from None

    async def show(request: Request) -> Requests:
        query = request.query(RequestsQuery)
        given = {
            one.name: getattr(query, one.name) for one in fields(RequestFilter) if hasattr(query, one.name)
        }
        found = await search(request, RequestFilter(**given), query.limit, query.after)
        return Requests(
            requests=[_found(row) for row in found.rows],
            next=f"{found.next[0]!r}_{found.next[1]}" if found.next is not None else None,
            searched_to=found.searched_to,
        )

    async def one(request: Request) -> FoundReceipt:
        wanted = str(request.path["request_id"])
        found = await search(request, RequestFilter(request_id=wanted), 1, None)
        row = _found(found.rows[0]) if found.rows else None
        tenants = [row.tenant] if row else ["default", *request.context.runtime.policy.tenants]
        receipt = await _receipt(site, request, tenants, wanted)
        if row is None and receipt is None:
            raise NotFound(f"No request '{wanted}' is on record.")
        return FoundReceipt(request=row, receipt=receipt)

    return [
        (
            operation(
                *("GET", "/requests", "findRequests", "The newest requests that fit a filter", Requests),
                query=RequestsQuery,
                errors=(503,),
            ),
            show,
        ),
        (
            operation(
                *(
                    "GET",
                    "/requests/{request_id}",
                    "requestReceipt",
                    "One request, with its receipt",
                    FoundReceipt,
                ),
                errors=(404, 503),
            ),
            one,
        ),
    ]


async def _receipt(site: Site, request: Request, tenants: list[str], wanted: str) -> dict[str, Any] | None:
    try:
        answers = await site.peers.ask({"do": RECEIPT, "id": wanted, "tenants": tenants})
    except StoreDown as error:
        raise Overloaded(f"Receipts cannot be read now. {error}", retry_after=1.0) from error
    return next((answer["receipt"] for answer in answers if "receipt" in answer), None)


def _found(row: dict[str, Any]) -> FoundRequest:
    kept = {name: row[name] for name in FoundRequest.model_fields if row.get(name) is not None}
    kept["tags"] = tuple(tag for tag in (row["tags"] or "").split(",") if tag)
    return FoundRequest(
        **kept,
        id=row["request_id"],
        key=row["key_id"],
        usd=row["cost_nanodollars"] / NANO,
        cached=row["status"] < 400 and not row["attempts"] and row["answered_model"] is not None,
    )
