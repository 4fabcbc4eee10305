from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.backends.fake import FakeBackend
from gateway.policy import schema
from gateway.types import Chunk, Usage
from tests.fakes import TARGET, a_call

pytestmark = pytest.mark.anyio


def scripted(*script: dict[str, Any], **more: Any) -> FakeBackend:
    return FakeBackend("up", schema.FakeBackend.model_validate({"kind": "fake", "script": script, **more}))


async def ask(backend: FakeBackend, **request: Any) -> list[Chunk]:
    return [chunk async for chunk in backend.stream(a_call(**request), TARGET)]


def text(chunks: list[Chunk], index: int = 0) -> str:
    return "".join((chunk.delta or {}).get("content", "") for chunk in chunks if chunk.index == index)


@given(st.text(max_size=40))
def test_the_reply_is_said_whole_whatever_it_holds(reply: str) -> None:
    chunks = asyncio.run(ask(scripted({"reply": reply})))
    assert text(chunks) == reply
    assert chunks[-1].finish_reason == "stop"


async def test_words_are_tokens_and_tokens_are_counted() -> None:
    chunks = await ask(scripted({"reply": "one two  three"}))
    assert [(chunk.delta or {}).get("content") for chunk in chunks] == ["one", " two", "  three", None]
    assert chunks[0].delta == {"role": "assistant", "content": "one"}
    assert chunks[-1].usage == Usage(prompt=1, completion=3)


async def test_the_first_match_answers() -> None:
    backend = scripted({"match": "time", "reply": "noon"}, {"match": "", "reply": "hm"})
    messages = ({"role": "user", "content": "the time?"}, {"role": "assistant", "content": "?"})
    assert text(await ask(backend, messages=messages)) == "noon"
    parts = ({"role": "user", "content": [{"type": "text", "text": "what time"}, {"type": "image_url"}]},)
    assert text(await ask(backend, messages=parts)) == "noon"
    assert text(await ask(backend)) == "hm"
    assert text(await ask(backend, messages=({"role": "system", "content": "time"},))) == "hm"
    assert text(await ask(backend, prompt="what time")) == "noon"


async def test_nothing_matches() -> None:
    with pytest.raises(errors.Rejected, match="no entry") as caught:
        await ask(scripted({"match": "time", "reply": "noon"}))
    assert caught.value.status == 404


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.Rejected),
        (429, errors.RateLimited),
        (500, errors.UpstreamFailed),
        (503, errors.UpstreamUnavailable),
    ],
)
async def test_scripted_errors_are_real_ones(status: int, kind: type[errors.GatewayError]) -> None:
    with pytest.raises(kind, match="so there"):
        await ask(scripted({"reply": "so there", "status": status}))


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
async def test_a_limit_of_tokens(limit: str) -> None:
    chunks = await ask(scripted({"reply": "one two three"}), params={limit: 2})
    assert text(chunks) == "one two"
    assert (chunks[-1].finish_reason, chunks[-1].usage) == ("length", Usage(1, 2))
    whole = await ask(scripted({"reply": "one two"}), params={limit: 2})
    assert whole[-1].finish_reason == "stop"


async def test_several_choices() -> None:
    chunks = await ask(scripted({"reply": "one two"}), n=3)
    assert [text(chunks, index) for index in range(3)] == ["one two"] * 3
    assert chunks[-1].usage == Usage(1, 6)
    assert [chunk.index for chunk in chunks if chunk.finish_reason] == [0, 1, 2]


@pytest.mark.parametrize(("after", "said"), [(0, ""), (1, "one"), (3, "one two three")])
async def test_a_break_in_the_middle(after: int, said: str) -> None:
    chunks = []
    with pytest.raises(errors.UpstreamFailed) as caught:
        async for chunk in scripted({"reply": "one two three", "cut_after": after}).stream(a_call(), TARGET):
            chunks.append(chunk)  # noqa: PERF401
    assert caught.value.code == "upstream_cut"
    assert text(chunks) == said


async def test_of_a_whole_answer_that_breaks_off_nothing_has_come() -> None:
    backend = scripted({"reply": "one two three", "cut_after": 2})
    with pytest.raises(errors.UpstreamFailed) as caught:
        await anext(backend.stream(a_call(stream=False), TARGET))
    assert text([*caught.value.unread]) == "one two"


async def test_delays() -> None:
    backend = scripted({"reply": "one two three"}, first_token_delay="60ms", token_delay="30ms")
    loop = asyncio.get_running_loop()
    start = loop.time()
    times = [loop.time() - start async for _ in backend.stream(a_call(), TARGET)]
    assert times[0] >= 0.06
    assert times[2] - times[1] >= 0.029


async def test_it_is_always_ready() -> None:
    backend = scripted({"reply": "x"})
    await backend.probe()
    await backend.aclose()


async def test_it_keeps_to_the_time_limits_of_a_server() -> None:
    slow = scripted({"reply": "a b c"}, first_token_delay="200ms")
    with pytest.raises(errors.UpstreamTimeout, match="sent nothing within"):
        await ask(slow, timeouts={"first_token": "20ms"})
    with pytest.raises(errors.UpstreamTimeout, match="sent nothing within"):
        await ask(slow, timeouts={"first_token": "20ms"}, stream=False)
    assert text(await ask(slow, timeouts={"total": "20s"}, stream=False)) == "a b c"
    halting = scripted({"reply": "a b c"}, token_delay="200ms")
    with pytest.raises(errors.UpstreamTimeout, match="stalled"):
        await ask(halting, timeouts={"idle": "20ms"})
    call = a_call()
    call.deadline = time.perf_counter() + 0.02
    with pytest.raises(errors.DeadlineExceeded):
        async for _ in slow.stream(call, TARGET):
            pass
