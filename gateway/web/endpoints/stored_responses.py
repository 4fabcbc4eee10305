"""``/v1/responses/{id}``: responses that are kept, for their tenant alone."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.errors import BadRequest, NotFound
from gateway.runtime.background_requests import BackgroundRequests
from gateway.stores.response_store import KeptResponse, Piece, ResponseStore
from gateway.stores.store import StoreDown
from gateway.web.context import RequestContext
from gateway.web.conversation import MARKED, UNFINISHED, pieces_of, store_down
from gateway.web.counted import counted
from gateway.web.heavy_reads import SMALL, HeavyReads
from gateway.wire.responses import ids
from gateway.wire.responses.input_items import page_of

NAME = "responses"
"""Of these requests in refusals, where others have a model."""


class StoredResponses:
    """Anyone else's are as if they did not exist. All raise ``NotFound``, and ``UpstreamUnavailable``."""

    def __init__(self, background: BackgroundRequests, reads: HeavyReads) -> None:
        self._background = background
        self._reads = reads

    async def one(self, request: Request) -> Response:
        """GET and DELETE."""
        return await (self.delete(request) if request.method == "DELETE" else self.get(request))

    async def get(self, request: Request) -> Response:
        if request.query_params.get("stream", "false") not in ("false", "0"):
            raise BadRequest(
                "A stored response is not streamed again. Leave out 'stream'.",
                param="stream",
                code="unsupported_parameter",
            )
        store, kept = await _found(request)
        async with AsyncExitStack() as held:
            taken = _Taken(request, self._reads, held)
            await taken.add(kept.answered)
            kept, stored = await _whole(store, _tenant(request), kept)
            content = kept.response(stored)
            return _Held(content, taken.headers, held.pop_all())

    async def delete(self, request: Request) -> Response:
        """One that is being made in the background is stopped. What continues it cannot be continued any more."""
        store, kept = await _found(request)
        tenant, name = _tenant(request), kept.id
        try:
            if kept.status in UNFINISHED:
                await store.delete_unfinished(tenant, name)
                await self._background.cancel(tenant, name)
            await store.delete(tenant, name)
        except StoreDown as error:
            raise store_down(error) from error
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        """One that has ended is left as it is. Raises ``BadRequest`` for one that is not in the background."""
        store, kept = await _found(request)
        tenant, name = _tenant(request), kept.id
        if not kept.background:
            raise BadRequest(
                "Only a response in the background can be cancelled. To stop another, close its connection.",
                code="not_in_background",
            )
        async with AsyncExitStack() as held:
            taken = _Taken(request, self._reads, held)
            await taken.add(kept.own)
            try:
                if kept.status in UNFINISHED:
                    await store.ask_to_cancel(tenant, name)
                    await self._background.cancel(tenant, name)
                    kept = await store.find(tenant, name) or kept
                record = await store.record(tenant, kept) if kept.status in UNFINISHED else None
                if record is not None and record.response["status"] in UNFINISHED:
                    # Another worker makes it, and will notice; or none does, as the one that did was killed.
                    await store.put_back(
                        tenant, replace(record, response={**record.response, "status": "cancelled"})
                    )
                    kept = await store.find(tenant, name) or kept
            except StoreDown as error:
                raise store_down(error) from error
            kept, stored = await _whole(store, tenant, kept)
            content = kept.response(stored)
            return _Held(content, taken.headers, held.pop_all())

    async def input_items(self, request: Request) -> Response:
        store, kept = await _found(request)
        tenant = _tenant(request)
        try:
            before = [one for one in await store.find_all(tenant, kept.before) if one is not None]
        except StoreDown as error:
            raise store_down(error) from error
        async with AsyncExitStack() as held:
            taken = _Taken(request, self._reads, held)
            await taken.add(MARKED * sum(one.marks for one in (*before, kept)))
            pieces = await pieces_of(before, taken.reading)
            pieces += [(kept, piece) for piece in kept.items]
            page = page_of([_Listed(piece.id, one, piece) for one, piece in pieces], request.query_params)
            records = {item.of.id: item.of for item in page.items}
            await taken.add(sum(one.own for one in records.values()))
            cut: dict[tuple[str, Piece], bytes] = {}
            for name, one in records.items():
                anew, content = await _whole(store, tenant, one)
                places = None if anew is one else dict(zip(one.pieces(), anew.pieces(), strict=False))
                for piece in [item.piece for item in page.items if item.of is one]:
                    place = piece if places is None else places.get(piece)
                    if place is None:
                        raise _not_found(name)
                    cut[name, piece] = content[place.start : place.end]
            written = page.write([cut[item.of.id, item.piece] for item in page.items])
            return _Held(written, taken.headers, held.pop_all())


class _Taken:
    """What a request has read, until ``held`` is left. What is no trifle counts as a request."""

    def __init__(self, request: Request, reads: HeavyReads, held: AsyncExitStack) -> None:
        self.headers: Mapping[str, str] = {}
        """For the answer."""
        self.reading = reads.of(_tenant(request))
        self._request = request
        self._held = held
        self._is_counted = False

    async def add(self, size: int) -> None:
        """Wait until so many bytes more may be read. Raises ``RateLimited`` and ``Overloaded``."""
        if size <= SMALL:
            return
        if not self._is_counted:
            self._is_counted = True
            headers = await self._held.enter_async_context(counted(self._request.scope, NAME))
            self.headers = {name.decode(): value.decode() for name, value in headers}
            self._held.callback(self.reading.release)
        await self.reading.add(size)


class _Listed(NamedTuple):
    id: str
    of: KeptResponse
    piece: Piece


class _Held(Response):
    """JSON; what it took is given back once it is sent."""

    media_type = "application/json"

    def __init__(self, content: bytes, headers: Mapping[str, str], held: AsyncExitStack) -> None:
        super().__init__(content, headers=headers)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._held:
            await super().__call__(scope, receive, send)


async def _whole(store: ResponseStore, tenant: str, kept: KeptResponse) -> tuple[KeptResponse, bytes]:
    try:
        whole = await store.whole(tenant, kept)
    except StoreDown as error:
        raise store_down(error) from error
    if whole is None:
        raise _not_found(kept.id)
    return whole


def _tenant(request: Request) -> str:
    return RequestContext.of(request.scope).caller().tenant


async def _found(request: Request) -> tuple[ResponseStore, KeptResponse]:
    wanted, store = request.path_params["response_id"], RequestContext.of(request.scope).runtime.responses
    try:
        known = store is not None and ids.is_response_id(wanted)
        kept = await store.find(_tenant(request), wanted) if store is not None and known else None
    except StoreDown as error:
        raise store_down(error) from error
    if store is None or kept is None:
        raise _not_found(wanted)
    return store, kept


def _not_found(wanted: str) -> NotFound:
    return NotFound(
        f"Response with id '{wanted[:80]}' not found. It was not stored, was deleted, or is older than responses "
        "are kept."
    )
