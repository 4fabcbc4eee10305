"""``/v1/batches``: files of requests that are answered within a day, for their tenant alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import orjson
from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from gateway.batches import wire_form
from gateway.batches.batch import WINDOW, Batch, Creator, new_id
from gateway.batches.batch_table import BatchTable
from gateway.databases.database import DatabaseError
from gateway.errors import BadRequest, Conflict, Forbidden, NotFound, UpstreamUnavailable
from gateway.types import Json
from gateway.web.body import read_body
from gateway.web.context import RequestContext
from gateway.web.counted import counted
from gateway.web.sending import send_body
from gateway.wire import json_body

NAME = "batches"
"""Under which limits know these requests."""
MAX_BODY = 2**18
_LONGEST_AGENT = 256

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Batches:
    """https://platform.openai.com/docs/api-reference/batch. ``wake`` is called where there is something to do."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET and POST."""
        async with counted(scope, NAME) as headers:
            if scope["method"] == "POST":
                batch = await self._create(scope, receive)
                await send_body(send, orjson.dumps(wire_form.written(batch)), headers=headers)
            else:
                await send_body(send, orjson.dumps(await _page(scope)), headers=headers)

    async def _create(self, scope: Scope, receive: Receive) -> Batch:
        context = RequestContext.of(scope)
        policy, caller = context.runtime.policy, context.caller()
        data = await read_body(context.headers, receive, MAX_BODY)
        asked = json_body.check(wire_form.CreateBatchBody, json_body.read_json(data, policy.limits))
        if not policy.batches.enabled:
            raise Forbidden(
                "This gateway takes no batches now. Send requests by themselves.", code="batches_off"
            )
        await _check_input(context, asked.input_file_id)
        now = int(time.time())
        batch = Batch(
            id=new_id(),
            creator=Creator(
                caller.key_id, caller.tenant, caller.tier, caller.models, _user_agent(scope)[:_LONGEST_AGENT]
            ),
            endpoint=asked.endpoint,
            input_file_id=asked.input_file_id,
            created_at=now,
            expires_at=now + WINDOW,
            metadata=asked.metadata,
            output_seconds=asked.output_expires_after.seconds if asked.output_expires_after else None,
        )
        await _asked(_table(scope).create, batch)
        self._wake()
        return batch


class OneBatch:
    """GET."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with counted(scope, NAME) as headers:
            await send_body(send, orjson.dumps(wire_form.written(await _found(scope))), headers=headers)


class CancelBatch:
    """POST. What runs is stopped; what has a result is in the files."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with counted(scope, NAME) as headers:
            batch = await _found(scope)
            if batch.status != "cancelling":
                now = int(time.time())
                if not await _asked(_table(scope).cancel, batch.tenant, batch.id, now):
                    batch = await _found(scope)
                    raise Conflict(
                        f"Cannot cancel a batch with status '{batch.status}'.", code="invalid_status"
                    )
                self._wake()
                batch = await _found(scope)
            await send_body(send, orjson.dumps(wire_form.written(batch)), headers=headers)


async def _check_input(context: RequestContext, id: str) -> None:
    """Raises ``BadRequest``."""
    files = context.runtime.files
    if files is None:
        raise Forbidden("This gateway keeps no files, and so takes no batches.", code="batches_off")
    file = await files.find(context.caller().tenant, id)
    if file is None:
        raise BadRequest(
            f"There is no file '{id[:80]}'. Upload it to /v1/files with the purpose 'batch'.",
            param="input_file_id",
            code="invalid_value",
        )
    if file.purpose != "batch":
        raise BadRequest(
            f"The file '{id}' has the purpose '{file.purpose}'. Upload it with 'batch'.",
            param="input_file_id",
            code="invalid_value",
        )


async def _page(scope: Scope) -> dict[str, Json]:
    asked = _query(scope)
    found = await _asked(_table(scope).listed, _tenant(scope), asked.after, asked.limit + 1)
    return wire_form.page(found[: asked.limit], more=len(found) > asked.limit)


def _query(scope: Scope) -> wire_form.BatchPage:
    given = QueryParams(scope["query_string"])
    limit = given.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= 100):
        raise BadRequest(
            "'limit' should be a whole number from 1 to 100.", param="limit", code="invalid_value"
        )
    return wire_form.BatchPage(after=(given.get("after") or "")[:256] or None, limit=int(limit))


async def _found(scope: Scope) -> Batch:
    wanted = scope["path_params"]["batch_id"]
    batch = await _asked(_table(scope).find, _tenant(scope), wanted)
    if batch is None:
        raise NotFound(f"No batch found with id '{wanted[:80]}'.")
    return batch


async def _asked(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """In a thread. Raises ``UpstreamUnavailable``."""
    try:
        return await asyncio.to_thread(function, *args, **kwargs)
    except DatabaseError as error:
        raise UpstreamUnavailable(
            "Batches cannot be read or written now. Whoever runs the gateway finds the reason in its log.",
            code="batches_unavailable",
            retry_after=5.0,
        ) from error


def _table(scope: Scope) -> BatchTable:
    return RequestContext.of(scope).runtime.batches


def _tenant(scope: Scope) -> str:
    return RequestContext.of(scope).caller().tenant


def _user_agent(scope: Scope) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"user-agent"), "")
