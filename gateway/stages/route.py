"""Finds out where the call may be tried, and in which order."""

from __future__ import annotations

from contextlib import aclosing

from gateway.routing.affinity import place
from gateway.routing.router import Router
from gateway.types import Call, Chunks, Handler, Stage


def route(router: Router) -> Stage:
    def stage(following: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            plan = router.plan(call)
            first = plan[0]
            call.candidates = plan
            call.candidate = first
            call.receipt.note(
                "route", model=first.model, candidates=[place(one) for one in plan], why=first.why
            )
            async with aclosing(following(call)) as chunks:
                async for chunk in chunks:
                    yield chunk
            if call.candidate is not first:
                router.served(call)

        return handle

    return stage
