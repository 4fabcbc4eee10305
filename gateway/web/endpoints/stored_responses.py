"""``/v1/responses/{id}``: responses that are kept, for their tenant alone."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.errors import BadRequest, NotFound
from gateway.runtime.background_requests import BackgroundRequests
from gateway.stores.responses import ResponseStore, StoredResponse
from gateway.stores.store import StoreDown
from gateway.web.context import RequestContext
from gateway.web.conversation import UNFINISHED, all_items, store_down
from gateway.wire.responses import ids
from gateway.wire.responses.input_items import write_page


class StoredResponses:
    """Anyone else's are as if they did not exist. All raise ``NotFound``, and ``UpstreamUnavailable``."""

    def __init__(self, background: BackgroundRequests) -> None:
        self._background = background

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
        _, record = await _found(request)
        return JSONResponse(record.response)

    async def delete(self, request: Request) -> Response:
        """One that is being made in the background is stopped. What continues it cannot be continued any more."""
        store, record = await _found(request)
        tenant, name = _tenant(request), record.response["id"]
        try:
            if record.response["status"] in UNFINISHED:
                await store.ask_to_cancel(tenant, name)
                await self._background.cancel(tenant, name)
            await store.delete(tenant, name)
        except StoreDown as error:
            raise store_down(error) from error
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        """One that has ended is left as it is. Raises ``BadRequest`` for one that is not in the background."""
        store, record = await _found(request)
        tenant, name = _tenant(request), record.response["id"]
        if not record.response["background"]:
            raise BadRequest(
                "Only a response in the background can be cancelled. To stop another, close its connection.",
                code="not_in_background",
            )
        if record.response["status"] not in UNFINISHED:
            return JSONResponse(record.response)
        try:
            await store.ask_to_cancel(tenant, name)
            await self._background.cancel(tenant, name)
            record = await store.find(tenant, name) or record
            if record.response["status"] in UNFINISHED:
                # Another worker makes it, and will notice; or none does, as the one that did was killed.
                record = replace(record, response={**record.response, "status": "cancelled"})
                await store.put(tenant, record)
        except StoreDown as error:
            raise store_down(error) from error
        return JSONResponse(record.response)

    async def input_items(self, request: Request) -> Response:
        store, record = await _found(request)
        try:
            items = await all_items(store, _tenant(request), record)
        except StoreDown as error:
            raise store_down(error) from error
        return JSONResponse(write_page(items, request.query_params))


def _tenant(request: Request) -> str:
    return RequestContext.of(request.scope).caller().tenant


async def _found(request: Request) -> tuple[ResponseStore, StoredResponse]:
    wanted, store = request.path_params["response_id"], RequestContext.of(request.scope).runtime.responses
    try:
        known = store is not None and ids.is_response_id(wanted)
        record = await store.find(_tenant(request), wanted) if store is not None and known else None
    except StoreDown as error:
        raise store_down(error) from error
    if store is None or record is None:
        raise NotFound(
            f"Response with id '{wanted[:80]}' not found. It was not stored, was deleted, or is older than responses "
            "are kept."
        )
    return store, record
