"""Many at once, clients that leave, and an engine that dies: what the whole of it does then."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import httpx
import openai
import pytest

from tests.e2e.conftest import Stack, children

QUESTIONS = [
    "What is the capital of France?",
    "Tell me a short story about a fox.",
    "What is 12 + 30?",
    "Count from 1 to 20.",
    "Who are you?",
    "How many minutes are in 3 hours?",
    "Tell me a story about a bear named Tom.",
    "What is the opposite of hot?",
]


async def ask(client: openai.AsyncOpenAI, question: str) -> str:
    stream = await client.chat.completions.create(
        model="tollgate-demo",
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=120,
        stream=True,
    )
    text, finished = "", None
    async for event in stream:
        text += event.choices[0].delta.content or ""
        finished = event.choices[0].finish_reason or finished
    if finished is None:
        raise AssertionError(f"the answer to {question!r} has no end")
    return text


def large_steps(stack: Stack) -> float:
    """Steps of more than eight sequences; their mean falls where a busy machine brings the requests one by one."""
    small = stack.engine_metric(r'tollgate_engine_step_batch_size_bucket\{[^}]*le="8(?:\.0)?"\}')
    return stack.engine_metric("tollgate_engine_step_batch_size_count") - small


def client_of(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0, timeout=300)


@pytest.mark.anyio
async def test_64_streams_at_once_say_what_each_says_alone(stack: Stack) -> None:
    async with client_of(stack) as client:
        alone = {question: await ask(client, question) for question in QUESTIONS}
        large = large_steps(stack)
        together = await asyncio.gather(*(ask(client, QUESTIONS[i % len(QUESTIONS)]) for i in range(64)))
    assert len(set(alone.values())) == len(QUESTIONS)
    assert together == [alone[QUESTIONS[i % len(QUESTIONS)]] for i in range(64)]
    assert large_steps(stack) > large, "64 streams at once should share steps"


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up_stops_the_work(stack: Stack, stream: bool) -> None:
    body = {
        "model": "tollgate-demo",
        "messages": [{"role": "user", "content": "Count from 1 to 50."}],
        "temperature": 0,
    }
    async with httpx.AsyncClient(
        base_url=stack.url, headers={"authorization": f"Bearer {stack.key}"}
    ) as http:
        alone = await http.post("/v1/chat/completions", json=body, timeout=300)
        whole = alone.json()["usage"]["completion_tokens"]
        before = stack.engine_metric("tollgate_engine_generated_tokens_total")
        body |= {"stream": stream, "n": 48, "temperature": 1.0}
        # More than it answers while a busy machine keeps this process from hanging up.
        asking = [
            asyncio.create_task(http.post("/v1/chat/completions", json=body, timeout=300)) for _ in range(6)
        ]
        await _until(lambda: stack.engine_metric("tollgate_engine_running_requests") > 0)
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    await _until(lambda: stack.engine_metric("tollgate_engine_running_requests") == 0)
    produced = stack.engine_metric("tollgate_engine_generated_tokens_total")
    assert produced - before < len(asking) * 48 * whole / 2
    await asyncio.sleep(0.3)
    assert stack.engine_metric("tollgate_engine_generated_tokens_total") == produced


@pytest.mark.anyio
async def test_a_killed_engine_gives_clean_errors_and_comes_back(own_stack: Stack) -> None:
    stack = own_stack
    async with client_of(stack) as client:
        before = await ask(client, QUESTIONS[0])
        killed = asyncio.Event()

        async def ask_on() -> None:
            """So that answers are under way when the engine is stopped."""
            while not killed.is_set():
                await ask(client, "Count from 1 to 50.")

        asking = [asyncio.create_task(ask_on()) for _ in range(16)]
        await _until(lambda: stack.engine_metric("tollgate_engine_running_requests") > 4)
        (engine,) = children(stack.process.pid, "engine", "serve")
        # Stopped first: else it may have answered them all by the time that a busy machine lets this process go on.
        os.kill(engine, signal.SIGSTOP)
        killed.set()
        asking += [asyncio.create_task(ask(client, question)) for question in QUESTIONS]
        await _until(lambda: stack.gateway_metric("tollgate_requests_in_flight") >= len(QUESTIONS))
        os.kill(engine, signal.SIGKILL)
        results = await asyncio.gather(*asking, return_exceptions=True)
        failures = [r for r in results if isinstance(r, Exception)]
        assert failures, "the kill cut nothing"
        assert all(isinstance(r, openai.APIError) for r in failures), failures
        with pytest.raises(openai.APIStatusError) as caught:
            await ask(client, QUESTIONS[0])
        assert caught.value.status_code == 503
        assert int(caught.value.response.headers["retry-after"]) >= 1
        other = await client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "hi"}]
        )
        assert other.choices[0].message.content == "Hello from a script."
        await _until(lambda: not stack.is_ready())
        await asyncio.to_thread(stack.wait_ready)
        assert await ask(client, QUESTIONS[0]) == before


async def _until(condition, *, seconds: float = 300.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline:
            raise AssertionError("waited in vain")
        await asyncio.sleep(0.01)
