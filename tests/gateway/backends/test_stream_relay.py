"""What a relay passes on and what it leaves to the decoder are the stream together, however its bytes are cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.answer_limits import MAX_STREAM
from gateway.backends.openai_decoder import OpenAIStreamDecoder
from gateway.backends.stream_relay import MOST, StreamRelay
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.types import Chunk
from gateway.wire.openai.dialect import CHAT
from tests.fakes import DONE, a_call, delta, sse

pytestmark = pytest.mark.anyio


class Heard:
    """A sink that has all that a client would: the texts of what it was given, in order."""

    def __init__(self) -> None:
        self.source: object = None
        self.looking: list[Callable[[Chunk, Sequence[str]], object]] = []
        self.is_open = True
        self.is_slow = False
        self.texts: list[Any] = []
        self.relayed = 0

    async def caught_up(self) -> None: ...

    def pass_on(self, like: Chunk, texts: Sequence[str]) -> bool:
        if self.is_slow:
            return False
        self.relayed += len(texts)
        self.hear([like.with_text(text) for text in texts])
        return True

    def hear(self, chunks: Sequence[Chunk]) -> None:
        self.texts += [(chunk.index, chunk.delta, chunk.finish_reason, chunk.usage) for chunk in chunks]


def words(*texts: str) -> bytes:
    return b"".join(sse(delta(text)) for text in texts)


class Stream:
    """An answer that has begun, read as an exchange reads it."""

    def __init__(self) -> None:
        call = a_call()
        self.sink = Heard()
        self.decoder = OpenAIStreamDecoder("up", CHAT, call)
        self.decoder.feed(sse(delta("", role="assistant")) + words("begun"))
        self.relay: StreamRelay = self.decoder.relay(self.sink, UpstreamTimeouts(call.timeouts))

    def read(self, part: bytes, *, relays: bool = True) -> None:
        while part and not self.decoder.done:
            size = len(part)
            part = self.relay.take(part) if relays else part
            if len(part) >= size:
                self.sink.hear(self.decoder.feed(part))
                return


async def test_only_who_took_no_pieces_is_waited_for() -> None:
    stream = Stream()
    other = sse(delta("other", index=1))
    assert stream.relay.take(other) == other
    assert not stream.relay.is_refused
    stream.sink.is_slow = True
    assert stream.relay.take(words("word")) == words("word")
    assert stream.relay.is_refused


EVENTS = [
    words("word"),
    words("wörld"),
    words('"}\n\\'),
    words(""),
    sse(delta("other", index=0, role="assistant")),
    sse(delta(reasoning_content="Hm")),
    sse(delta("the end", finish="stop")),
    sse({**delta("word"), "id": "another"}),
    words("word").replace(b"\n", b"\r\n"),
    words("word").replace(b"\n", b"\r"),
    words("word").replace(b"data: ", b"data:"),
    b"event: x\n" + words("word"),
    b": ping\n\n",
    b"\n",
    b"data: {nonsense\n\n",
    b"data: \n\n",
]


async def test_any_stream_in_any_pieces() -> None:
    @given(
        st.lists(st.sampled_from([EVENTS[0], EVENTS[1], *EVENTS]), max_size=14),
        st.lists(st.integers(1, 700), max_size=12),
        st.booleans(),
    )
    def check(events: list[bytes], cuts: list[int], ends: bool) -> None:
        data = b"".join(events) + (DONE + words("late") if ends else b"")
        parts, start = [], 0
        for cut in (*cuts, len(data)):
            parts.append(data[start : start + cut])
            start += cut
        relayed, plain = Stream(), Stream()
        for part in parts:
            relayed.read(part)
            plain.read(part, relays=False)
        assert relayed.sink.texts == plain.sink.texts
        assert relayed.decoder.done == plain.decoder.done
        assert str(relayed.decoder.error) == str(plain.decoder.error)
        assert not plain.sink.relayed
        assert relayed.decoder._limits.size == plain.decoder._limits.size

    check()


async def test_whole_pieces_are_all_its_own() -> None:
    stream = Stream()
    assert stream.relay.take(words("a")) == b""
    assert stream.relay.take(words("b", "c")) == b""
    assert stream.sink.relayed == 3


async def test_half_an_event_waits_for_the_rest_of_it() -> None:
    stream = Stream()
    cut = words("wörld").index("ö".encode()) + 1
    assert stream.relay.take(words("a") + words("wörld")[:cut]) == b""
    assert stream.relay.take(words("wörld")[cut:] + words("b")[:9]) == b""
    assert [delta for _, delta, _, _ in stream.sink.texts] == [{"content": "a"}, {"content": "wörld"}]
    # Of one that takes longer to come the decoder has all.
    assert stream.relay.take(words("b")[9:20]) == words("b")[:20]
    stream.decoder.feed(words("b")[:20])
    assert stream.relay.take(words("b")[20:]) == words("b")[20:]


async def test_what_follows_pieces_is_left() -> None:
    stream = Stream()
    end = sse(delta(finish="stop")) + DONE
    assert stream.relay.take(words("a", "b") + end) == end
    assert stream.sink.relayed == 2
    assert stream.relay.take(words("a") + b": ping\n\n") == b": ping\n\n"
    assert stream.relay.take(words("a") + b"\r") == b"\r"


async def test_a_client_that_must_be_waited_for_is_left_to_the_decoder() -> None:
    stream = Stream()
    size = stream.decoder._limits.size
    stream.relay.take(words("a") + words("b")[:9])
    counted = stream.decoder._limits.size
    assert counted > size
    stream.sink.is_slow = True
    assert stream.relay.take(words("b")[9:]) == words("b")
    assert stream.decoder._limits.size == counted
    assert [chunk.delta for chunk in stream.decoder.feed(words("b"))] == [{"content": "b"}]
    stream.sink.is_slow = False
    assert stream.relay.take(words("c")) == b""


async def test_so_much_and_no_more_goes_on_at_once() -> None:
    stream = Stream()
    part = words(*(f"word{number}" for number in range(1000)))
    left = stream.relay.take(part)
    assert 0 < len(part) - len(left) <= MOST
    assert left.startswith(b"data: ")
    stream.read(left)
    assert len(stream.sink.texts) == stream.sink.relayed == 1000


async def test_a_stream_without_end_is_the_decoders_to_refuse() -> None:
    stream = Stream()
    stream.decoder._limits.size = MAX_STREAM - 10
    assert stream.relay.take(words("a")) == words("a")
    stream.decoder.feed(words("a"))
    assert "streamed an answer of over" in str(stream.decoder.error)


async def test_before_anything_is_learned_all_is_the_decoders() -> None:
    decoder = OpenAIStreamDecoder("up", CHAT, a_call())
    relay = decoder.relay(Heard(), UpstreamTimeouts(a_call().timeouts))
    assert relay.take(words("a")) == words("a")
