"""Envoy's external processing over gRPC, and the health of who serves it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc import aio

from gateway.picker.answers import Answers
from gateway.picker.conversation import Conversation, UnsupportedMode
from gateway.picker.figures import Figures
from gateway.picker.messages import HEALTH_SERVICE, SERVICE, messages
from gateway.picker.pool import EnginePool
from gateway.picker.settings import PickerSettings

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
LIVENESS = "liveness"
READINESS = ("", "readiness", SERVICE)
"""The services that are healthy once it is known which engines there are."""
EVERY = 0.5
"""Seconds between two looks, for who watches."""


class Service:
    def __init__(self, pool: EnginePool, settings: PickerSettings, figures: Figures) -> None:
        self.stopping = False
        """It is not ready any more, and ends what it has begun."""
        self._pool = pool
        self._settings = settings
        self._figures = figures
        self._messages = messages()
        self._answers = Answers(self._messages.response)

    def add_to(self, server: aio.Server) -> None:
        handler = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=self._messages.request.FromString,
            response_serializer=self._messages.response.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),)
        )
        self.add_health_to(server)

    def add_health_to(self, server: aio.Server) -> None:
        forms = {
            "request_deserializer": self._messages.health_request.FromString,
            "response_serializer": self._messages.health_response.SerializeToString,
        }
        handlers = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check, **forms),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch, **forms),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(HEALTH_SERVICE, handlers),))

    async def _process(self, _: object, context: aio.ServicerContext[Any, Any]) -> None:
        conversation = Conversation(self._pool, self._settings, self._answers, self._figures)
        self._figures.streams.inc()
        try:
            # No generators: who ends the stream would leave them to be closed some time later.
            while (request := await context.read()) is not aio.EOF:
                for answer in await conversation.answer(request):
                    await context.write(answer)
                    if answer.HasField("immediate_response"):
                        return
        except UnsupportedMode as error:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))
        finally:
            conversation.close()
            self._figures.streams.dec()

    async def _check(self, request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        status = self._status(request.service)
        if status == SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service '{request.service}' here")
        return self._messages.health_response(status=status)

    async def _watch(self, request: Any, context: aio.ServicerContext[Any, Any]) -> None:
        before = None
        while True:
            if (status := self._status(request.service)) != before:
                before = status
                await context.write(self._messages.health_response(status=status))
            await asyncio.sleep(EVERY)

    def _status(self, service: str) -> int:
        if service == LIVENESS:
            return SERVING
        if service not in READINESS:
            return SERVICE_UNKNOWN
        return SERVING if self._pool.ready and not self.stopping else NOT_SERVING
