"""What is done with a conversation but answering it: ``/v1/responses/input_tokens`` and ``/v1/responses/compact``."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from starlette.types import Receive, Scope, Send

from gateway.policy.schema.limits import RequestLimits
from gateway.web.answering import read_whole
from gateway.web.body import cancel_on_disconnect
from gateway.web.body_parser import BodyReader
from gateway.web.calls import make_call, reply_headers
from gateway.web.context import RequestContext
from gateway.web.conversation import Conversation, recall
from gateway.web.endpoints.count_tokens import count
from gateway.web.heavy_reads import HeavyReads, Reading
from gateway.web.sending import send_body
from gateway.wire.responses import compaction
from gateway.wire.responses.body_to_request import ResponseRequest, read_count_request
from gateway.wire.responses.sealed import SummarySeal

Read = Callable[[bytes, RequestLimits], ResponseRequest]


class _OfConversation:
    """An ASGI endpoint that reads a conversation."""

    def __init__(self, reader: BodyReader, reads: HeavyReads, seal: SummarySeal) -> None:
        self._reader = reader
        self._reads = reads
        self._seal = seal

    async def _read(
        self, read: Read, context: RequestContext, scope: Scope, receive: Receive, reading: Reading
    ) -> tuple[ResponseRequest, Conversation]:
        asked = await self._reader.read(read, scope, receive)
        return await recall(
            context.runtime.responses,
            *(context.caller().tenant, asked, reading),
            most_items=context.runtime.policy.limits.messages,
            most_bytes=self._reader.max_body,
        )


class CountInputTokens(_OfConversation):
    """https://platform.openai.com/docs/api-reference/responses/input-tokens; counted as Anthropic's callers' are."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        reading = self._reads.of(context.caller().tenant)
        try:
            asked, before = await self._read(read_count_request, context, scope, receive, reading)
            cancel_on_disconnect(scope)
            chat = asked.chat(self._seal, context.caller().tenant, before.items)
            tokens, headers = await count(context, chat, scope, before.residency)
        finally:
            reading.release()
        body = {"object": "response.input_tokens", "input_tokens": tokens["input_tokens"]}
        await send_body(send, orjson.dumps(body), headers=headers)


class Compact(_OfConversation):
    """Answered by the model that is named, through all stages: it counts and costs as a chat does."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        reading = self._reads.of(context.caller().tenant)
        try:
            asked, before = await self._read(compaction.read_request, context, scope, receive, reading)
            question = compaction.as_question(asked, before.items, self._seal, context.caller().tenant)
            call = make_call(context, question, scope)
            call.residency = before.residency
            summary = compaction.CompactionWriter(call, [*before.items, *asked.items], self._seal)
            await read_whole(context.runtime, call, summary.add, scope)
            body = orjson.dumps(summary.response())
        finally:
            reading.release()
        await send_body(send, body, headers=reply_headers(call))
