"""``/v1/requests/{id}``: the receipt of one of the caller's own requests."""

from __future__ import annotations

import asyncio
import logging

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.databases.database import DatabaseError
from gateway.errors import NotFound, UpstreamUnavailable
from gateway.observe.ledger.ledger_receipt import ledger_receipt
from gateway.stores.store import StoreDown
from gateway.web.context import RequestContext

log = logging.getLogger(__name__)


async def receipt(request: Request) -> Response:
    """A tenant sees its own requests only; anyone else's are as if they did not exist. Raises ``NotFound``."""
    context = RequestContext.of(request.scope)
    wanted = request.path_params["request_id"]
    try:
        found = await context.runtime.receipts.find(context.caller().tenant, wanted)
    except StoreDown as error:
        raise UpstreamUnavailable(f"Receipts cannot be read now. {error}", retry_after=1.0) from error
    ledger = context.runtime.ledger
    if found is None and ledger is not None:
        try:
            found = await asyncio.to_thread(ledger_receipt, ledger.database, context.caller().tenant, wanted)
        except DatabaseError as error:
            log.warning("the ledger '%s' cannot be read for a receipt: %s", ledger.database, error)
            raise UpstreamUnavailable("Receipts cannot be read now.", retry_after=1.0) from error
    if found is None:
        raise NotFound(f"No request '{wanted}' of yours is on record.")
    return JSONResponse(found)
