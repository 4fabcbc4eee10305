"""``POST /v1/responses``: an answer in OpenAI's Responses API, whole, as events, or in the background."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

import orjson
from starlette.types import Receive, Scope, Send

from gateway.errors import TOO_LATE, BadRequest, GatewayError, Internal, ShuttingDown
from gateway.residency import residency_of
from gateway.runtime.background_requests import BackgroundRequests
from gateway.stores.response_store import ResponseStore, StoredResponse
from gateway.stores.store import StoreDown
from gateway.types import NOT_STORED, Call, Json
from gateway.web.answering import answer_stream, answer_whole
from gateway.web.attached_files import attach
from gateway.web.body_parser import BodyReader
from gateway.web.calls import make_call
from gateway.web.context import RequestContext
from gateway.web.conversation import Conversation, recall, store_down
from gateway.web.heavy_reads import HeavyReads, Reading
from gateway.web.sending import send_body
from gateway.wire.obfuscation import ObfuscatedEvents
from gateway.wire.responses.body_to_request import ResponseRequest, read_request
from gateway.wire.responses.chunks_to_events import ResponseEventWriter
from gateway.wire.responses.chunks_to_response import ResponseBodyWriter
from gateway.wire.responses.items import with_ids
from gateway.wire.responses.response_fields import ResponseFields
from gateway.wire.responses.sealed import SummarySeal

log = logging.getLogger(__name__)

LOOK_EVERY = 1.0
"""Seconds between two looks whether another process was asked to cancel a response."""
LEFT_OUT = "x-tollgate-tools-left-out"
"""Types of tools that were asked for, and the model was not offered, as nobody here runs them."""


class CreateResponse:
    """The ASGI endpoint."""

    def __init__(
        self,
        reader: BodyReader,
        background: BackgroundRequests,
        reads: HeavyReads,
        seal: SummarySeal,
        *,
        heartbeat: float,
    ) -> None:
        """``heartbeat`` is the longest silence, in seconds, of a stream; 0 is without bound."""
        self._reader = reader
        self._background = background
        self._reads = reads
        self._seal = seal
        self._heartbeat = heartbeat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        reading = self._reads.of(context.caller().tenant)
        try:
            asked = await self._reader.read(read_request, scope, receive)
            owner, limits, most = (
                context.caller().tenant,
                context.runtime.policy.limits,
                self._reader.max_body,
            )
            store = context.runtime.responses
            asked, before = await recall(
                store, owner, asked, reading, most_items=limits.messages, most_bytes=most
            )
            files = context.runtime.files
            chat = asked.chat(self._seal, owner, before.items)
            request = await attach(chat, files, owner, reading, most_bytes=most)
            call = make_call(context, request, scope)
            call.residency = before.residency
            if not asked.store:
                call.receipt.note(NOT_STORED)
            if asked.left_out:
                call.reply_headers[LEFT_OUT] = ", ".join(asked.left_out)
                call.receipt.note("tools", left_out=asked.left_out)
            answer = _Answer(call, asked, before, store if asked.store else None)
            if asked.background:
                await self._begin(context, answer, send, reading)
                reading = self._reads.of(owner)  # the other goes on
                return
            runtime, settle = context.runtime, answer.settle
            if asked.stream:
                events = ObfuscatedEvents(answer.events) if asked.obfuscates else answer.events
                await answer_stream(runtime, call, events, scope, send, settle, heartbeat=self._heartbeat)
            else:
                await answer_whole(runtime, call, ResponseBodyWriter(answer.events), scope, send, settle)
        finally:
            reading.release()

    async def _begin(self, context: RequestContext, answer: _Answer, send: Send, reading: Reading) -> None:
        """Start it, and say so."""
        queued = answer.events.fields.begun("queued")
        await answer.keep_or_fail(queued)
        work = BackgroundAnswer(context, answer, self._background).run(reading)
        self._background.start(context.caller().tenant, answer.events.fields.id, work)
        await send_body(send, orjson.dumps(queued))


class _Answer:
    """One answer on its way, and what is kept of it."""

    def __init__(
        self, call: Call, asked: ResponseRequest, before: Conversation, store: ResponseStore | None
    ) -> None:
        """Nothing is kept without ``store``."""
        self.call = call
        self.store = store
        self.events = ResponseEventWriter(ResponseFields(call, asked, stored=store is not None))
        self._items = with_ids(asked.items, self.events.fields.id)
        self._before = before

    def resume(self, call: Call) -> None:
        """Before it has begun: it is answered by a later policy."""
        self.call = self.events.fields.call = call

    async def settle(self, error: GatewayError | None) -> None:
        """Keep the response before its caller has its end, and may go on from it."""
        response = self.events.response() if error is None else self.events.failed(error)
        try:
            if not await self.keep(response):
                self.events.fields.stored = False
        except StoreDown as down:
            self.events.fields.stored = False
            log.warning("the response of %s is not kept: %s", self.call.request_id, down)

    async def keep(self, response: dict[str, Json]) -> bool:
        """Raises ``StoreDown``."""
        if self.store is None:
            return False
        return await self.store.put(self.call.principal.tenant, self._record(response))

    async def keep_on(self, response: dict[str, Json]) -> None:
        """In place of what was kept before, unless it was deleted. Raises ``StoreDown``."""
        if self.store is not None:
            await self.store.put_back(self.call.principal.tenant, self._record(response))

    def _record(self, response: dict[str, Json]) -> StoredResponse:
        items = [dict(item) for item in self._items]
        within = residency_of(self.call)
        residency = None if within is None else sorted(within)
        return StoredResponse(response, items, self._before.before, self._before.size, residency)

    async def keep_or_fail(self, response: dict[str, Json]) -> None:
        """Where it can only be had from the store. Raises a ``GatewayError``."""
        try:
            kept = await self.keep(response)
        except StoreDown as error:
            raise store_down(error) from error
        if not kept:
            raise BadRequest(
                "A response in the background can only be had from the store, and this gateway does not keep this one: "
                "it keeps none, or the input is too long. Leave out 'background'.",
                param="background",
                code="not_stored",
            )


class BackgroundAnswer:
    """A response that is made while nobody waits for it; its state is in the store."""

    def __init__(self, context: RequestContext, answer: _Answer, background: BackgroundRequests) -> None:
        self._context = context
        self._answer = answer
        self._background = background

    async def run(self, reading: Reading) -> None:
        """``reading`` ends with it."""
        try:
            await self._run()
        finally:
            reading.release()

    async def _run(self) -> None:
        answer, runtime = self._answer, self._context.runtime
        fields, tenant = answer.events.fields, answer.call.principal.tenant
        watching = asyncio.create_task(self._watch(asyncio.current_task()))
        try:
            with runtime.in_use():
                response = await self._make()
        except asyncio.CancelledError:
            if self._background.closing:
                response = answer.events.failed(ShuttingDown(TOO_LATE, retry_after=1.0))
            else:
                response = fields.cancelled(answer.events.so_far())
        finally:
            watching.cancel()
        try:
            unfinished = response["status"] in ("failed", "cancelled")
            if (
                not unfinished
                and answer.store is not None
                and await answer.store.is_to_cancel(tenant, fields.id)
            ):
                response = fields.cancelled(answer.events.so_far())
            await answer.keep_on(response)
        except StoreDown as error:
            log.warning("the response %s of tenant %s is lost: %s", fields.id, tenant, error)

    async def _make(self) -> dict[str, Json]:
        answer = self._answer
        begun = False
        try:
            runtime, call = await self._background.in_service(answer.call, self._context.runtime)
            answer.resume(call)
            with runtime.in_use():
                async with aclosing(runtime.handler(call)) as chunks:
                    async for chunk in chunks:
                        if chunk.comment is not None:
                            continue
                        if not begun:
                            begun = True
                            await answer.keep_on(answer.events.fields.begun())
                        answer.events.event(chunk)
            return answer.events.response()
        except GatewayError as error:
            return answer.events.failed(error)
        except StoreDown as error:
            return answer.events.failed(store_down(error))
        except Exception:
            log.exception("%s failed inside the gateway", answer.call.request_id)
            fault = Internal(
                f"The gateway failed on this request. Its log has the reason under {answer.call.request_id}."
            )
            return answer.events.failed(fault)

    async def _watch(self, work: asyncio.Task[None] | None) -> None:
        """Another worker may be asked to cancel what runs here."""
        store, tenant, name = (
            self._answer.store,
            self._answer.call.principal.tenant,
            self._answer.events.fields.id,
        )
        while store is not None and work is not None:
            await asyncio.sleep(LOOK_EVERY)
            try:
                if await store.is_to_cancel(tenant, name):
                    work.cancel()
                    return
            except StoreDown:
                continue
