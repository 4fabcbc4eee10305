"""Reading what requests ask for. Short bodies are parsed on the event loop, long ones in a process pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from starlette.types import Receive, Scope

from gateway.children.process_pool import ProcessDied, ProcessPool
from gateway.errors import BadRequest, Overloaded
from gateway.policy.schema.limits import RequestLimits
from gateway.web.body import read_body
from gateway.web.context import RequestContext
from gateway.wire.json_body import with_model

_Read = TypeVar("_Read")

AT_ONCE = 64 * 1024
"""Bytes: whatever they hold takes some ten milliseconds at most."""
MAX_TOKENS = 10_000
"""JSON delimiters in a longer body, each of which may be a value, that take as little time."""
_STEP = 2**20
"""Bytes that are scanned before the event loop runs on."""
TIMEOUT = 20.0
"""Seconds of processor time that parsing a body may take."""


class BodyReader:
    """For endpoints that take JSON."""

    def __init__(self, parser: BodyParser, *, max_body: int) -> None:
        self.parser = parser
        self.max_body = max_body

    async def read(
        self, read: Callable[[bytes, RequestLimits], _Read], scope: Scope, receive: Receive
    ) -> _Read:
        """As ``BodyParser.read``, of the request's body. Raises as that and ``read_body`` do."""
        context = RequestContext.of(scope)
        data = await read_body(context.headers, receive, self.max_body)
        if context.deployment is not None:
            data = await self.naming(context.deployment, data, context)
        return await self.parser.read(read, data, context.runtime.policy.limits, context.caller().tenant)

    async def naming(self, model: str, data: bytes, context: RequestContext) -> bytes:
        """A body with the model that its path names."""
        naming = partial(with_model, model=model)
        return await self.parser.read(naming, data, context.runtime.policy.limits, context.caller().tenant)


class BodyParser:
    """``pool`` is where long bodies are parsed."""

    def __init__(self, pool: ProcessPool) -> None:
        self._pool = pool

    async def read(
        self, read: Callable[[bytes, RequestLimits], _Read], data: bytes, limits: RequestLimits, owner: str
    ) -> _Read:
        """The result of ``read``, a function of a module's top level, for ``data``. ``owner`` is the tenant.

        Raises what ``read`` raises; ``BadRequest`` where it takes too long; ``Overloaded``.
        """
        if len(data) <= AT_ONCE or not await _is_dense(data):
            return read(data, limits)
        try:
            return await self._pool.run(owner, TIMEOUT, read, data, limits)
        except TimeoutError:
            raise BadRequest(
                f"The request body takes more than {TIMEOUT:g} s to parse. Send fewer values in it.",
                code="invalid_json",
            ) from None
        except ProcessDied:
            raise Overloaded(
                "The request body could not be parsed; memory may have run out. Try again, or send less at once.",
                retry_after=1.0,
            ) from None


async def _is_dense(data: bytes) -> bool:
    """Whether there may be many values. Texts have such characters, too, but a few long texts have few of them."""
    found = 0
    for start in range(0, len(data), _STEP):
        end = start + _STEP
        found += (
            sum(data.count(mark, start, end) for mark in (b"{", b"[", b'"'))
            + data.count(b",", start, end) // 16
        )
        if found > MAX_TOKENS:
            return True
        await asyncio.sleep(0)
    return False
