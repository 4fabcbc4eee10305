"""``/v1/requests/{id}``: the receipt of one of the caller's own requests."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.errors import NotFound, UpstreamUnavailable
from gateway.stores.store import StoreDown
from gateway.web.context import RequestContext


async def receipt(request: Request) -> Response:
    """A tenant sees its own requests only; anyone else's are as if they did not exist. Raises ``NotFound``."""
    context = RequestContext.of(request.scope)
    wanted = request.path_params["request_id"]
    try:
        found = await context.runtime.receipts.find(context.caller().tenant, wanted)
    except StoreDown as error:
        raise UpstreamUnavailable(f"Receipts cannot be read now. {error}", retry_after=1.0) from error
    if found is None:
        raise NotFound(f"No request '{wanted}' of yours is on record; receipts are kept for an hour.")
    return JSONResponse(found)
