"""From a request's bytes to what it says: at once where that is soon done, else beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from gateway.children.process_pool import ProcessDied, ProcessPool
from gateway.errors import BadRequest, Overloaded
from gateway.policy.schema.limits import Limits

_Read = TypeVar("_Read")

AT_ONCE = 64 * 1024
"""Bytes that can hold no more than some ten milliseconds of work, whatever they are."""
SIGNS = 10_000
"""Signs of structure in a longer body, which may be as many values, that are as little work."""
_STEP = 2**20
"""Bytes that are looked through before others have their turn."""
PATIENCE = 20.0
"""Seconds that a body may take to be read."""


class BodyParser:
    """``pool`` is where long bodies are read."""

    def __init__(self, pool: ProcessPool) -> None:
        self._pool = pool

    async def read(
        self, read: Callable[[bytes, Limits], _Read], data: bytes, limits: Limits, owner: str
    ) -> _Read:
        """What ``read``, a function of a module's top level, makes of ``data``. ``owner`` is whose body it is.

        Raises what ``read`` raises; ``BadRequest`` where it takes too long; ``Overloaded``.
        """
        if len(data) <= AT_ONCE or not await _is_dense(data):
            return read(data, limits)
        try:
            return await self._pool.run(owner, PATIENCE, read, data, limits)
        except TimeoutError:
            raise BadRequest(
                f"The request body takes more than {PATIENCE:g} s to read. Send fewer values in it.",
                code="invalid_json",
            ) from None
        except ProcessDied:
            raise Overloaded(
                "The request body could not be read, for want of memory perhaps. Try again, or send less at once.",
                retry_after=1.0,
            ) from None


async def _is_dense(data: bytes) -> bool:
    """Whether there may be many values. Texts hold such signs too; few of them mean that it is a few long texts."""
    found = 0
    for start in range(0, len(data), _STEP):
        end = start + _STEP
        found += (
            sum(data.count(sign, start, end) for sign in (b"{", b"[", b'"'))
            + data.count(b",", start, end) // 16
        )
        if found > SIGNS:
            return True
        await asyncio.sleep(0)
    return False
