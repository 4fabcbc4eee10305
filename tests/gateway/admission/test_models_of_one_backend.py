"""A backend that names no limit, whose one model is overloaded while another answers at once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from gateway.admission.pools import Pools
from gateway.policy.schema import Target, Timeouts
from gateway.types import Call, Candidate, Chunk, Chunks, Usage
from tests.fakes import a_call, policy
from tests.gateway.admission.virtual_time import in_virtual_time
from tests.gateway.upstream_loops import attempts

CLIENTS, UNHURT = 40, 4
"""Requests for ``busy`` at once, and so many that it answers at once."""


class Models:
    """``busy`` takes longer the more of its requests it has; ``quick`` answers at once."""

    def __init__(self) -> None:
        self.under_way = 0
        """Of ``busy``."""
        self.holding = False
        self.released = asyncio.Event()

    async def __call__(self, call: Call) -> Chunks:
        if call.model != "busy":
            await asyncio.sleep(0.002)
            yield Chunk(delta={"content": "Hello"}, finish_reason="stop", usage=Usage(5, 1))
            return
        self.under_way += 1
        try:
            if self.holding:
                await self.released.wait()
            else:
                await asyncio.sleep(0.002 + 0.1 * max(0, self.under_way - UNHURT))
            yield Chunk(delta={"content": "Hello"}, finish_reason="stop", usage=Usage(5, 1))
        finally:
            self.under_way -= 1


@pytest.mark.parametrize("separate", [False, True], ids=["one backend", "a backend each"])
@in_virtual_time
async def test_an_overloaded_model_is_limited_where_it_is_a_backend_of_its_own(separate: bool) -> None:
    of_busy = "own" if separate else "up"
    a_server = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}
    rules = policy(
        backends={"up": a_server, "own": a_server},
        models={
            name: {"targets": [{"backend": backend, "model": name}]}
            for name, backend in (("busy", of_busy), ("quick", "up"))
        },
        tiers={"default": {"max_wait": "5m"}},
    )
    now = asyncio.get_running_loop().time
    pools = Pools(clock=now)
    pools.update(rules)
    models = Models()
    handler = attempts(models, rules, pools=pools)

    async def ask(name: str) -> None:
        target = Target(backend=of_busy if name == "busy" else "up", model=name)
        call = replace(a_call(policy_=rules, model=name), started=now())
        call.candidates = (Candidate(name, target, Timeouts()),)
        async with aclosing(handler(call)) as chunks:
            assert [chunk async for chunk in chunks]

    async def again_and_again() -> None:
        while True:
            await ask("quick")
            await asyncio.sleep(0.01)

    for _ in range(12):  # both are known from a quiet time
        await ask("busy")
        await ask("quick")
    others = [asyncio.create_task(again_and_again()) for _ in range(4)]
    for _ in range(2):
        await asyncio.gather(*(ask("busy") for _ in range(CLIENTS)))
    models.holding = True
    asked = [asyncio.create_task(ask("busy")) for _ in range(CLIENTS)]
    await asyncio.sleep(1.0)
    queued = CLIENTS - models.under_way
    models.released.set()
    await asyncio.gather(*asked)
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    if separate:
        assert queued > 0, "they wait here, in fair turns"
    else:
        assert queued == 0, "a limit for both would make the quick one's callers wait for the busy one"
