"""The endpoints that generate text in the dialects that need nothing more."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from gateway.web.answering import answer_stream, answer_whole
from gateway.web.attached_files import attach
from gateway.web.body import read_body
from gateway.web.body_parser import BodyReader
from gateway.web.calls import make_call
from gateway.web.context import RequestContext, route_of
from gateway.web.event_stream import EventStream
from gateway.web.heavy_reads import HeavyReads, Reading
from gateway.web.sending import send_body
from gateway.wire.dialect import Dialect


class Generate:
    """The ASGI endpoint of one dialect."""

    def __init__(self, dialect: Dialect, reader: BodyReader, reads: HeavyReads, *, heartbeat: float) -> None:
        """``heartbeat`` is the longest silence, in seconds, of a stream; 0 is without bound."""
        self._dialect = dialect
        self._reader = reader
        self._reads = reads
        self._heartbeat = heartbeat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        runtime, dialect, owner = context.runtime, self._dialect, context.caller().tenant
        repeats = runtime.rendered.is_used and context.line is None
        reading: Reading | None = None
        try:
            data = await read_body(context.headers, receive, self._reader.max_body)
            if context.deployment is not None:
                data = await self._reader.naming(context.deployment, data, context)
            if repeats and await self._rendered(context, scope, data, send):
                return
            request = await self._reader.parser.read(dialect.read_request, data, runtime.policy.limits, owner)
            if b'"file_id"' in data and request.native is None:
                reading = self._reads.of(owner)
                most = self._reader.max_body
                request = await attach(request, runtime.files, owner, reading, most_bytes=most)
            call = make_call(context, request, scope)
            if request.stream:
                events = dialect.event_writer(call)
                await answer_stream(context.runtime, call, events, scope, send, heartbeat=self._heartbeat)
            else:
                await answer_whole(context.runtime, call, dialect.body_writer(call), scope, send)
        finally:
            if reading is not None:
                reading.release()
        if repeats:
            context.runtime.rendered.keep(dialect, call, data)

    async def _rendered(self, context: RequestContext, scope: Scope, data: bytes, send: Send) -> bool:
        """Whether an answer stood ready. It waits for nothing, so nobody watches for its client to leave."""
        found = context.runtime.rendered.answer(
            self._dialect,
            context.caller(),
            context.request_id,
            context.headers,
            data,
            started=context.started,
            route=route_of(scope),
        )
        if found is None:
            return False
        streamed, body, headers = found
        if streamed:
            await EventStream(send, lambda: headers, heartbeat=b"", every=0).end(body)
        else:
            await send_body(send, body, headers=headers)
        return True
