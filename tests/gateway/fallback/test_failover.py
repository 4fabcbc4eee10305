"""The stage as a whole, fed piece by piece: whatever breaks off where, the caller reads the answer once and whole."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import GatewayError, RateLimited, Upstream, UpstreamFailed, UpstreamTimeout
from gateway.observe.metrics import Metrics
from gateway.policy.schema import Target, Timeouts
from gateway.types import Call, Candidate, Chunk, Chunks, TokenEstimate, Usage
from tests.fakes import CANDIDATE, a_call, policy
from tests.gateway.upstream_loops import attempts

METRICS = Metrics()
PROMPT = 5
NAMES = ("a", "b", "c", "d")
ERRORS: tuple[type[GatewayError], ...] = (UpstreamFailed, UpstreamTimeout, RateLimited)


@dataclass(frozen=True)
class Server:
    """Says its pieces, and breaks off after some of them or after its finish, if at all."""

    pieces: tuple[str, ...]
    breaks_after: int | None
    error: type[GatewayError]
    continues: bool
    opens: bool
    """With an empty delta that tells the role."""


@st.composite
def servers(draw: st.DrawFn, text: str, *, sound: bool = False) -> Server:
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=8)))
    pieces = tuple(piece for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True) if (piece := text[a:b]))
    return Server(
        pieces,
        None if sound else draw(st.none() | st.integers(0, len(pieces) + 1)),
        draw(st.sampled_from(ERRORS)),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def backend(servers: dict[str, Server]) -> object:
    async def handle(call: Call) -> Chunks:
        assert call.target is not None
        server = servers[call.target.backend]
        begun = ""
        if call.request.continues:
            assert call.request.messages is not None
            begun = call.request.messages[-1]["content"]
        left = "".join(server.pieces).removeprefix(begun)
        pieces: list[str] = []
        for piece in reversed(server.pieces):
            if len(piece) >= len(left):
                pieces.append(left)
                break
            pieces.append(piece)
            left = left[: -len(piece)]
        pieces = [piece for piece in reversed(pieces) if piece]
        if server.opens:
            yield Chunk(delta={"role": "assistant", "content": ""})
        for i, piece in enumerate(pieces):
            if i == server.breaks_after:
                raise server.error("gone")
            yield Chunk(delta={"content": piece}, more=i % 2 == 0)
        if server.breaks_after == len(pieces):
            raise server.error("gone")
        yield Chunk(delta={}, finish_reason="stop")
        if server.breaks_after is not None:
            raise server.error("gone")
        yield Chunk(usage=Usage(PROMPT, len(pieces)))

    return handle


def the_call(row: dict[str, Server]) -> Call:
    rules = policy(
        backends={
            name: {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "continues": server.continues}
            for name, server in row.items()
        },
        models={
            name: {"targets": [{"backend": name, "model": "x"}], "retry": {"attempts": 2, "backoff": "1ms"}}
            for name in row
        },
    )
    call = a_call(policy_=rules, model="a")
    call.estimate = TokenEstimate(PROMPT, 9, 9)
    call.candidates = tuple(Candidate(name, Target(backend=name, model="x"), Timeouts()) for name in row)
    return call


async def read(call: Call, row: dict[str, Server]) -> tuple[list[Chunk], GatewayError | None]:
    heard: list[Chunk] = []
    handler = attempts(backend(row), call.policy, metrics=METRICS)
    try:
        async with aclosing(handler(call)) as chunks:
            async for chunk in chunks:
                heard.append(chunk)  # noqa: PERF401 (a comprehension would lose them)
    except GatewayError as error:
        return heard, error
    return heard, None


TEXT = st.text(alphabet="ab c\n", min_size=1, max_size=30)


@given(TEXT, st.data())
def test_with_a_sound_one_at_the_end_the_answer_is_whole(text: str, data: st.DataObject) -> None:
    many = data.draw(st.integers(0, 3))
    row = {name: data.draw(servers(text)) for name in NAMES[:many]}
    row[NAMES[many]] = data.draw(servers(text, sound=True))
    call = the_call(row)
    heard, error = asyncio.run(read(call, row))
    assert error is None
    assert "".join((chunk.delta or {}).get("content") or "" for chunk in heard) == text
    assert [chunk.finish_reason for chunk in heard if chunk.finish_reason] == ["stop"]
    assert sum("role" in (chunk.delta or {}) for chunk in heard) <= 1
    [usage] = [chunk.usage for chunk in heard if chunk.usage]
    assert usage.completion >= 1
    assert not call.upstream_usage[-1].estimated
    outcomes = [attempt["outcome"] for attempt in call.receipt.notes["fallback"]["attempts"]]
    assert outcomes[-1] == "ok"
    assert "ok" not in outcomes[:-1]


@given(TEXT, TEXT, st.data())
def test_whatever_they_say_there_is_one_answer_or_an_error(
    text: str, other: str, data: st.DataObject
) -> None:
    said = [data.draw(st.sampled_from([text, other])) for _ in NAMES[: data.draw(st.integers(1, 4))]]
    row = {name: data.draw(servers(one)) for name, one in zip(NAMES, said, strict=False)}
    call = the_call(row)
    heard, error = asyncio.run(read(call, row))
    read_text = "".join((chunk.delta or {}).get("content") or "" for chunk in heard)
    finishes = sum(chunk.finish_reason is not None for chunk in heard)
    if error is None:
        assert finishes == 1
    else:
        assert isinstance(error, Upstream | RateLimited)
        assert finishes <= 1
    if error is None and not any(server.continues for server in row.values()):
        assert read_text in said


@pytest.mark.anyio
async def test_what_had_come_of_an_unheard_answer_is_charged() -> None:
    error = UpstreamTimeout("silent")
    error.unread = [Chunk(delta={"content": "word " * 1000})]

    async def breaks_off(call: Call) -> Chunks:
        call.sent = True
        raise error
        yield

    call = a_call(stream=False)
    call.candidates = (CANDIDATE,)
    call.estimate = TokenEstimate(PROMPT, 10, 20)
    with pytest.raises(UpstreamTimeout):
        async for _ in attempts(breaks_off, call.policy, metrics=METRICS)(call):
            pass
    assert [one.usage for one in call.upstream_usage] == [Usage(PROMPT, 1250)]
