from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from gateway.observe.metrics import Metrics
from gateway.routing.shadow import Shadows
from gateway.stages.shadow import shadow
from gateway.types import Call, Chunk, Chunks
from tests.fakes import a_call, policy

pytestmark = pytest.mark.anyio


class Models:
    """The next handler; ``s`` never ends its answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.closed: list[str] = []

    async def __call__(self, call: Call) -> Chunks:
        self.asked.append(call.model)
        try:
            yield Chunk(delta={"content": call.model})
            if call.model == "s":
                await asyncio.Event().wait()
        finally:
            self.closed.append(call.model)


def a_model(**more: Any) -> Call:
    target = [{"backend": "up", "model": "x"}]
    return a_call(policy_=policy(models={"m": {"targets": target, **more}, "s": {"targets": target}}))


async def read(chunks: Chunks) -> list[Any]:
    async with aclosing(chunks):
        return [chunk.delta async for chunk in chunks]


async def test_the_answer_is_the_models_own_and_does_not_wait_for_the_shadows() -> None:
    models, shadows, metrics = Models(), Shadows(), Metrics()
    handler = shadow(shadows, metrics)(models)
    assert await read(handler(a_model(shadow={"model": "s"}))) == [{"content": "m"}]
    await asyncio.sleep(0.01)
    assert (models.asked, models.closed) == (["m", "s"], ["m"])
    await shadows.aclose()
    assert models.closed == ["m", "s"]
    assert b'tollgate_shadow_requests_total{model="s",status="499"} 1.0' in metrics.render()


async def test_a_caller_that_leaves_does_not_end_the_shadow() -> None:
    models, shadows = Models(), Shadows()
    chunks = shadow(shadows, Metrics())(models)(a_model(shadow={"model": "s"}))
    await anext(chunks)
    await chunks.aclose()
    await asyncio.sleep(0.01)
    assert models.closed == ["m"]
    assert shadows.in_flight == 1
    await shadows.aclose()


async def test_a_model_without_a_shadow_gets_the_next_handler_itself() -> None:
    models, shadows = Models(), Shadows()
    chunks = shadow(shadows, Metrics())(models)(a_model())
    assert chunks.__qualname__ == "Models.__call__"
    assert await read(chunks) == [{"content": "m"}]
    assert shadows.in_flight == 0
    assert models.asked == ["m"]
