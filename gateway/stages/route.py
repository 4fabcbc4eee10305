"""Chooses the call's candidates and their order."""

from __future__ import annotations

from contextlib import aclosing

from gateway.errors import GatewayError
from gateway.routing.affinity import target_name
from gateway.routing.router import Router
from gateway.types import Call, Chunks, Handler, Stage


def route(router: Router) -> Stage:
    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            try:
                plan = router.plan(call)
            except GatewayError as error:
                return _failing(error)
            first = plan[0]
            call.candidates = plan
            call.candidate = first
            call.receipt.note(
                "route", model=first.model, candidates=[target_name(one) for one in plan], why=first.why
            )
            # A generator costs time for each chunk: only where there is something to do at the end.
            return remembering(call) if router.has_affinity else following(call)

        async def remembering(call: Call) -> Chunks:
            first = call.candidate
            async with aclosing(following(call)) as chunks:
                async for chunk in chunks:
                    yield chunk
            if call.candidate is not first:
                router.record_served(call)

        return handle

    return stage


async def _failing(error: GatewayError) -> Chunks:
    raise error
    yield
