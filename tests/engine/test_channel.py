from __future__ import annotations

import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.channel import Channel, MessageDecoder, encode


@given(st.lists(st.lists(st.integers(), max_size=5), max_size=6), st.integers(1, 9))
def test_messages_survive_any_cutting_of_the_stream(messages: list[list[int]], size: int) -> None:
    stream = b"".join(map(encode, messages))
    decoder = MessageDecoder()
    found = [message for i in range(0, len(stream), size) for message in decoder.feed(stream[i : i + size])]
    assert found == messages


def test_receive_returns_at_once_waits_or_gives_up() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        assert channel.receive() == []
        began = time.monotonic()
        assert channel.receive(0.05) == []
        assert time.monotonic() - began >= 0.04
        theirs.sendall(encode("a") + encode("b"))
        assert channel.receive(None) == ["a", "b"]


def test_a_message_larger_than_the_socket_holds_arrives_whole() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        large = list(range(300_000))
        sender = threading.Thread(target=Channel(theirs).send, args=(large,))
        sender.start()
        assert Channel(ours).receive(None) == [large]
        sender.join()


def test_the_others_end_is_noticed_on_both_ways() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        channel = Channel(ours)
        with pytest.raises(EOFError):
            channel.receive(None)
        with pytest.raises(EOFError):
            channel.send("x")
