"""The client and a real engine process, without HTTP between."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from engine import generation as engine_generation
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.errors import ContextLengthExceeded, EngineDied, EngineStalled, QueueFull, StartupError
from engine.generation import Generation
from engine.messages import Step
from engine.server.health import Health, decode_token
from engine.worker.runner import Runner
from tests.engine.live import alive
from tests.engine.steps import run

pytestmark = pytest.mark.anyio

GREEDY = SamplingParams(max_tokens=12, temperature=0)
ENDLESS = SamplingParams(max_tokens=400, temperature=0)


@asynccontextmanager
async def started(model: Path) -> AsyncIterator[EngineClient]:
    config = EngineConfig(
        model=model, max_num_seqs=2, max_waiting=1, kv_cache_blocks=64, threads=1, log_level="warning"
    )
    client = await EngineClient.start(config)
    try:
        await client.ready()
        yield client
    finally:
        await client.close()


async def collect(generation: Generation) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    async for deltas in generation:
        for delta in deltas:
            tokens.setdefault(delta.index, []).extend(delta.tokens)
    return tokens


async def test_a_generation_from_start_to_end(tiny_model: Path, tiny_runner: Runner) -> None:
    async with started(tiny_model) as client:
        ready = await client.ready()
        assert (ready.max_model_len, ready.blocks, ready.dtype) == (512, 64, "float32")
        requests = [([5, 6, 7], GREEDY), ([90] * 40, GREEDY)]
        expected = run(tiny_runner, requests).tokens
        assert await collect(client.submit(requests)) == expected

        # Who reads late gets everything at once.
        finished = asyncio.Event()
        client.on_finish = finished.set
        generation = client.submit(requests[:1])
        await finished.wait()
        (deltas,) = [deltas async for deltas in generation]
        assert [token for delta in deltas for token in delta.tokens] == expected[0]

        # One sequence can be given up while the other goes on.
        generation = client.submit([([5], ENDLESS), requests[1]])
        first = await anext(generation)
        generation.stop(0)
        begun = [token for delta in first if delta.index == 1 for token in delta.tokens]
        assert [*begun, *(await collect(generation)).get(1, [])] == expected[1]

        with pytest.raises(ContextLengthExceeded, match="512"):
            await collect(client.submit([([5] * 501, GREEDY)]))

        crowd = [client.submit([([5], ENDLESS)]) for _ in range(3)]
        with pytest.raises(QueueFull):
            await collect(client.submit([([5], ENDLESS)]))
        for generation in crowd:
            generation.close()
        assert client.open_requests == 0
        pid = client.pid
    assert not alive(pid)
    with pytest.raises(EngineDied):
        client.submit(requests)


async def test_nothing_is_lost_or_mixed_up_when_callers_come_and_go(
    tiny_model: Path, tiny_runner: Runner
) -> None:
    """A cache for about two of the requests at a time, and callers that leave at any moment."""
    numbers = random.Random(4)
    requests = [
        ([numbers.randrange(2, 320) for _ in range(numbers.randrange(1, 120))], SamplingParams(40, 0.0))
        for _ in range(40)
    ]
    expected = run(tiny_runner, requests).tokens
    config = EngineConfig(
        model=tiny_model, max_num_seqs=6, max_batched_tokens=48, kv_cache_blocks=14, log_level="warning"
    )
    client = await EngineClient.start(config)
    preempted = 0

    def count(step: Step) -> None:
        nonlocal preempted
        preempted += step.preempted

    client.on_step = count

    async def call(i: int) -> None:
        await asyncio.sleep(numbers.random())
        generation = client.submit([requests[i]])
        tokens: list[int] = []
        try:
            async for deltas in generation:
                tokens += [token for delta in deltas for token in delta.tokens]
                if i % 4 == 0 and len(tokens) > i % 30:
                    return
            assert tokens == expected[i]
        finally:
            generation.close()

    try:
        await client.ready()
        async with asyncio.timeout(300):
            await asyncio.gather(*map(call, range(len(requests))))
        assert preempted
        assert client.open_requests == 0
        # Idle for a second, the loop checks its books; it would die if they were wrong.
        await asyncio.sleep(1.2)
        assert await collect(client.submit(requests[:1])) == {0: expected[0]}
        assert client.last is not None
        assert client.last.blocks_free + client.last.blocks_cached == 14
    finally:
        await client.close()


async def test_a_reader_who_is_behind_is_parked_and_loses_nothing(
    tiny_model: Path, tiny_runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_generation, "_MAX_UNREAD", 60)
    monkeypatch.setattr(engine_generation, "_BATCH", 8)
    prompts = [([5, 6, 7], ENDLESS), ([90] * 40, ENDLESS)]
    expected = run(tiny_runner, prompts).tokens
    async with started(tiny_model) as client:
        parked, free = asyncio.Event(), asyncio.Event()

        def watch(step: Step) -> None:
            if step.parked == 2:
                parked.set()
            if parked.is_set() and step.blocks_free + step.blocks_cached == 64:
                free.set()

        client.on_step = watch
        slow = client.submit(prompts)
        async with asyncio.timeout(300):
            await parked.wait()
            assert not client.computing and client.open_requests == 1
            # Both slots are free for others.
            assert await collect(client.submit(prompts)) == expected
            await free.wait()
        # The bound, and the steps in flight until the engine received the message: two tokens each.
        assert slow._unread < 2 * 60, "what had been computed before it was parked, and no more"
        tokens: dict[int, list[int]] = {0: [], 1: []}
        async with asyncio.timeout(300):
            async for deltas in slow:
                assert len(deltas) <= 8
                for delta in deltas:
                    tokens[delta.index] += delta.tokens
        assert tokens == expected
        assert client.open_requests == 0


async def test_health_is_a_token_decoded_in_time(tiny_model: Path) -> None:
    async with started(tiny_model) as client:
        health = Health(client, partial(decode_token, client), timeout=1.0, fresh=0.0)
        client.on_step = health.observe
        await health.check()
        os.kill(client.pid, signal.SIGSTOP)
        stalled = await asyncio.gather(health.check(), health.check(), return_exceptions=True)
        assert [type(error) for error in stalled] == [EngineStalled] * 2
        os.kill(client.pid, signal.SIGCONT)
        await asyncio.sleep(0.2)
        await health.check()
        os.kill(client.pid, signal.SIGKILL)
        await client.died.wait()
        with pytest.raises(EngineDied):
            await health.check()


async def test_a_model_that_does_not_load_says_why(tiny_model: Path) -> None:
    client = await EngineClient.start(
        EngineConfig(model=tiny_model, max_model_len=10_000, log_level="warning")
    )
    with pytest.raises(StartupError, match="512 positions"):
        await client.ready()
    await client.close()


async def test_a_loop_process_that_dies_while_it_loads_is_noticed(tiny_model: Path) -> None:
    client = await EngineClient.start(EngineConfig(model=tiny_model))
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(StartupError, match="died"):
        await client.ready()
    await client.close()
    client.kill()  # it has ended: there is nobody to tell
