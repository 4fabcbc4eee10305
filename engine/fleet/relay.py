"""A request on its way to its model's process: it waits until that is there, and its answer comes back as it is.

A stream that has to wait is told so by comments (lines that begin with a colon, which every reader of server-sent
events skips, https://html.spec.whatwg.org/multipage/server-sent-events.html), so that neither client nor gateway gives
it up; an answer that is not streamed comes late. One that had to wait has ``x-tollgate-model-wait``, in seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import orjson
from starlette.types import Receive, Scope, Send

from engine.errors import EngineDied, EngineError, InternalError, InvalidRequest
from engine.fleet.exchange import Exchange, Headers, MemberGone, is_farewell
from engine.fleet.keeper import Keeper
from engine.fleet.model import Model, State, Ticket
from engine.server.disconnect import ClientDisconnected, read_body, until_disconnect
from engine.server.hints import read_hints

log = logging.getLogger("engine.fleet")

_QUIET = 1.0
"""Seconds that a stream waits without a word."""
_AGAIN = 2.0
"""Seconds between two comments."""
_DROPPED = frozenset(
    {b"host", b"connection", b"content-length", b"transfer-encoding", b"expect", b"upgrade", b"keep-alive"}
)
WAITED = b"x-tollgate-model-wait"


@dataclass(slots=True)
class Asked:
    """What of a body matters here."""

    model: str | None
    stream: bool


def read_asked(body: bytes) -> Asked:
    """Raises ``InvalidRequest``."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidRequest("The body must be a JSON object.")
    model = found.get("model")
    if model is not None and not isinstance(model, str):
        raise InvalidRequest("'model' must be a string.", param="model")
    return Asked(model, found.get("stream") is True)


class Relay:
    """An ASGI application for one path that takes requests to models."""

    def __init__(
        self, path: str, keeper: Keeper, find: Callable[[str | None], Model], max_body_bytes: int
    ) -> None:
        """``find``: the model that serves a name. Raises ``ModelNotFound``."""
        self._line = b"POST " + path.encode()
        self._keeper = keeper
        self._find = find
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = _Reply(send)
        headers: Headers = scope["headers"]
        try:
            body = await read_body(receive, dict(headers), self._max_body_bytes)
            await until_disconnect(receive, self._answer(headers, body, reply))
        except ClientDisconnected:
            return
        except EngineError as error:
            await reply.fail(error)
        except Exception:
            log.exception("a request failed")
            await reply.fail(InternalError("The engine made a mistake; its log has the details."))

    async def _answer(self, headers: Headers, body: bytes, reply: _Reply) -> None:
        asked = read_asked(body)
        model = self._find(asked.model)
        began = time.monotonic()
        ticket = self._keeper.join(model, read_hints(dict(headers), began).deadline)
        passed = [header for header in headers if header[0] not in _DROPPED]
        try:
            while True:
                await self._wait(ticket, asked, reply)
                if ticket.cold:
                    reply.waited = time.monotonic() - began
                generation = ticket.generation
                try:
                    await self._exchange(ticket, passed, body, reply)
                    return
                except MemberGone as gone:
                    await self._keeper.lost(ticket, certain=gone.certain)
                    if reply.answered or not self._keeper.join_again(ticket):
                        raise self._death(model, generation) from None
                    log.warning("a request of %s, whose process died, waits for the next", model.name)
        finally:
            self._keeper.leave(ticket)

    async def _wait(self, ticket: Ticket, asked: Asked, reply: _Reply) -> None:
        """Until it is granted. Raises what it is refused for."""
        keeper, patience = self._keeper, _QUIET
        while ticket.member is None:
            if ticket.error is not None:
                raise ticket.error
            await ticket.change(patience)
            if ticket.member is None and ticket.error is None and asked.stream:
                patience = _AGAIN
                wait, model = keeper.expected_wait(ticket.model), ticket.model
                doing = model.state.value if model.state in (State.LOADING, State.WAKING) else "waiting"
                await reply.comment(
                    f"model {model.name}: {doing}, position {keeper.position(ticket)}, about {wait:.0f} s"
                )

    async def _exchange(self, ticket: Ticket, headers: Headers, body: bytes, reply: _Reply) -> None:
        """Raises ``MemberGone``."""
        if ticket.member is None:
            raise ValueError("the ticket was not granted")
        exchange = await Exchange.ask(ticket.member.socket, self._line, headers, body)
        try:
            await exchange.head()
            if exchange.status == 503:
                body = await exchange.whole()
                if is_farewell(exchange.status, body):
                    raise MemberGone("its engine process has ended", certain=True)
                return await reply.whole(exchange, body)
            await reply.pass_on(exchange)
        finally:
            exchange.close()

    def _death(self, model: Model, generation: int) -> EngineDied:
        """The same for all whose answers one death has ended."""
        if model.death is None or model.death[0] != generation:
            model.death = (
                generation,
                EngineDied(f"The process of the model '{model.name}' died; it is loaded again."),
            )
        return model.death[1]


class _Reply:
    """The response. What has been sent decides how an error can still be told."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False
        self.answered = False
        """Whether the client has anything of the model's answer."""
        self.waited: float | None = None
        """Seconds that it waited for its model."""

    async def comment(self, text: str) -> None:
        if not self._begun:
            self._begun = True
            await self._start(
                200, [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            )
        await self._part(f": {text}\n\n".encode(), more=True)

    async def pass_on(self, exchange: Exchange) -> None:
        """Raises ``MemberGone``."""
        is_stream = dict(exchange.headers).get(b"content-type", b"").startswith(b"text/event-stream")
        if self._begun and not is_stream:
            return await self.whole(exchange, await exchange.whole())
        async for part in exchange.body():
            await self._begin(exchange)
            self.answered = True
            await self._part(part, more=True)
        await self._begin(exchange)
        await self._part(b"", more=False)

    async def whole(self, exchange: Exchange, body: bytes) -> None:
        """An answer of which all has come."""
        self.answered = True
        if self._begun:  # refused after all: the status is gone, the reason is not
            return await self._part(b"data: " + body.strip() + b"\n\n", more=False)
        await self._begin(exchange)
        await self._part(body, more=False)

    async def fail(self, error: EngineError) -> None:
        body = orjson.dumps(error.body())
        if self._begun:
            return await self._part(b"data: " + body + b"\n\n", more=False)
        self._begun = True
        fields = {"content-type": "application/json", "content-length": str(len(body)), **error.headers()}
        await self._start(error.status, [(name.encode(), value.encode()) for name, value in fields.items()])
        await self._part(body, more=False)

    async def _begin(self, exchange: Exchange) -> None:
        if self._begun:
            return
        self._begun = True
        headers = [header for header in exchange.headers if header[0] not in _DROPPED - {b"content-length"}]
        if self.waited is not None:
            headers.append((WAITED, b"%.2f" % self.waited))
        await self._start(exchange.status, headers)

    async def _start(self, status: int, headers: Headers) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _part(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
