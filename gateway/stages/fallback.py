"""Tries a call's candidates in order until the caller has a whole answer, even if one must go on with another's."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from gateway.errors import GatewayError
from gateway.fallback.attempts import Attempts
from gateway.fallback.continuation import Deviated
from gateway.fallback.switchboard import Switchboard
from gateway.observe.metrics import Metrics
from gateway.types import Call, Chunks, Handler, Stage


def fallback(switchboard: Switchboard, metrics: Metrics) -> Stage:
    """``switchboard`` is the worker's own, and stays the same when the policy changes."""

    def stage(following: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            attempts = Attempts(call, switchboard, metrics)
            sent = attempts.sent
            try:
                while True:
                    attempt = attempts.next()
                    joint = attempt.joint
                    try:
                        with attempts.making(attempt):
                            async with aclosing(following(attempt.call)) as chunks:
                                async for chunk in chunks:
                                    if chunk.comment is not None:
                                        yield chunk
                                        continue
                                    attempt.take(chunk)
                                    for ready in joint.feed(chunk):
                                        if sent is not None:
                                            sent.add(ready)
                                        if joint.done:
                                            attempts.hears(attempt)
                                        yield ready
                                    if joint.done:
                                        attempts.hears(attempt)
                                        break
                                async for chunk in chunks:
                                    attempt.take(chunk)
                                    if sent is not None:
                                        sent.add(chunk)
                                    yield chunk
                            for ready in joint.end():
                                attempts.hears(attempt)
                                yield ready
                        return
                    except (GatewayError, Deviated) as error:
                        wait = attempts.after(attempt, error)
                    if wait:
                        await asyncio.sleep(wait)
            finally:
                attempts.note()

        return handle

    return stage
