"""Parsing request bodies: short ones on the event loop, long ones in a process pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from gateway.children.process_pool import ProcessDied, ProcessPool
from gateway.errors import BadRequest, Overloaded
from gateway.policy.schema.limits import RequestLimits

_Read = TypeVar("_Read")

AT_ONCE = 64 * 1024
"""Bytes: whatever they hold takes some ten milliseconds at most."""
MAX_TOKENS = 10_000
"""JSON delimiters in a longer body, each of which may be a value, that take as little time."""
_STEP = 2**20
"""Bytes that are scanned before the event loop runs on."""
TIMEOUT = 20.0
"""Seconds of processor time that parsing a body may take."""


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
