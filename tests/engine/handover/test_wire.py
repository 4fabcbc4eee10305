"""What goes between two engines: whatever is changed, left out or repeated is refused, and strangers hear nothing."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.handover.address import Address, connect, listen, parse_address
from engine.handover.arena import Mapped
from engine.handover.handshake import Unfit, answer, ask, difference
from engine.handover.wire import INDEX, BrokenFrame, CorruptFrame, Kind, Wire, read_json
from tests.examples import examples

SECRET = b"sixteen bytes or more"


@contextmanager
def wires() -> Iterator[tuple[Wire, Wire]]:
    one, other = map(Wire, socket.socketpair())
    try:
        yield one, other
    finally:
        one.close()
        other.close()


def sent(kind: Kind, *parts: bytes, key: bytes = b"", before: int = 0) -> bytes:
    """The bytes of a frame, after others that were sent ``before``."""
    with wires() as (one, other):
        one.sends = other.receives = key
        for _ in range(before):
            one.send(Kind.END)
            other.receive()
        one.send(kind, *parts)
        return other.sock.recv(2**20)


def received(data: bytes, key: bytes = b"") -> tuple[Kind, bytes]:
    with wires() as (one, other):
        other.receives = key
        one.sock.sendall(data)
        one.sock.shutdown(socket.SHUT_WR)
        return other.receive()


@given(st.sampled_from(Kind), st.binary(max_size=200), st.data())
@settings(max_examples=examples(200))
def test_a_frame_comes_as_it_was_sent_or_not_at_all(kind: Kind, body: bytes, data: st.DataObject) -> None:
    frame = sent(kind, body, key=b"k")
    assert received(frame, b"k") == (kind, body)
    place = data.draw(st.integers(0, len(frame) - 1))
    changed = bytearray(frame)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    for wrong in (bytes(changed), frame[:place]):
        with pytest.raises(BrokenFrame):
            received(wrong, b"k")


def test_frames_of_another_place_or_of_another_key_are_refused() -> None:
    for frame in (
        sent(Kind.END, b"{}", key=b"k", before=1),
        sent(Kind.END, b"{}", key=b"other"),
        sent(Kind.END),
    ):
        with pytest.raises(CorruptFrame):
            received(frame, b"k")


def test_a_block_goes_to_its_place_and_one_of_another_size_is_refused() -> None:
    content = bytearray(8)
    with wires() as (one, other):
        one.send(Kind.BLOCK, INDEX.pack(3), b"12345678")
        kind, body = other.receive(8, lambda index: memoryview(content) if index == 3 else memoryview(b""))
        assert (kind, body, bytes(content)) == (Kind.BLOCK, INDEX.pack(3), b"12345678")
        one.send(Kind.BLOCK, INDEX.pack(4), b"123456789")
        with pytest.raises(CorruptFrame, match="13 bytes"):
            other.receive(8, lambda index: memoryview(content))


def test_a_length_that_nobody_sends_takes_no_memory() -> None:
    with pytest.raises(CorruptFrame, match="4294967295 bytes"):
        received(b"\xff\xff\xff\xff\x06" + b"x" * 100, b"k")
    with pytest.raises(CorruptFrame, match="65537 bytes"):
        received(b"\x00\x01\x00\x01\x01" + b"x" * 100)


@pytest.mark.parametrize("body", [b"[" * 60_000, b'{"a":' * 10_000, b"[]", b"\xff", b"{", b"1" * 5000])
def test_what_is_no_object_of_json_is_refused(body: bytes) -> None:
    """Of a stranger, too: whatever else were raised would end the thread, and leave the connection open."""
    with pytest.raises(CorruptFrame, match="should be"):
        read_json(body)


def greet(asks: Callable[[Wire], object], gives: Callable[[Wire], object]) -> tuple[object, object]:
    """What the two sides come to; errors are returned."""
    found: list[object] = [None, None]

    def run(place: int, work: Callable[[Wire], object], wire: Wire) -> None:
        try:
            found[place] = work(wire)
        except BrokenFrame as error:
            found[place] = error
            wire.cut()

    with wires() as (one, other):
        thread = threading.Thread(target=run, args=(1, gives, other))
        thread.start()
        run(0, asks, one)
        thread.join()
    return found[0], found[1]


def asking(secret: bytes = SECRET, **fingerprint: object) -> Callable[[Wire], object]:
    return lambda wire: ask(wire, secret, {"model": "a", **fingerprint}, ["memory"], _far())


def giving(secret: bytes = SECRET) -> Callable[[Wire], object]:
    return lambda wire: answer(wire, secret, {"model": "a"}, {"nixl": {}, "memory": {"bytes": 4096}}, _far())


def _far() -> float:
    return 1e9


def test_two_that_know_the_secret_and_are_alike_speak_with_keys_of_their_own() -> None:
    keys: list[tuple[bytes, bytes]] = []

    def noting(work: Callable[[Wire], object]) -> Callable[[Wire], object]:
        def run(wire: Wire) -> object:
            found = work(wire)
            keys.append((wire.sends, wire.receives))
            return found

        return run

    for _ in range(2):
        assert greet(noting(asking()), noting(giving())) == ({"carrier": "memory", "bytes": 4096}, "memory")
    assert len({key for pair in keys for key in pair}) == 4 and keys[0] in (keys[1][::-1], keys[1])


def test_who_does_not_know_the_secret_learns_nothing() -> None:
    first, second = greet(asking(b"another one of that size"), giving())
    assert isinstance(first, Unfit) and "secret" in str(first) and isinstance(second, BrokenFrame)
    heard: list[bytes] = []

    def stranger(wire: Wire) -> None:
        """Who asks without knowing it, whatever it hears."""
        wire.say(Kind.HELLO, version=1, number="00" * 32)
        heard.append(wire.receive()[1])
        wire.say(Kind.PROOF, proof="00" * 32, fingerprint={}, local=True)
        heard.append(wire.receive()[1])

    _, second = greet(stranger, giving())
    assert isinstance(second, Unfit)
    assert len(heard) == 1 and set(json.loads(heard[0])) == {"number", "proof"}


def test_a_proof_is_not_good_for_the_other_side() -> None:
    """Who asks cannot be answered with its own proof."""

    def mirror(wire: Wire) -> None:
        said = wire.expect(Kind.HELLO)
        wire.say(Kind.CHALLENGE, number=said["number"], proof=said["number"])
        wire.receive()

    first, _ = greet(asking(), mirror)
    assert isinstance(first, Unfit)


def test_engines_that_differ_are_told_in_what() -> None:
    first, second = greet(asking(dtype="bfloat16", model="b"), giving())
    for found in (first, second):
        assert isinstance(found, Unfit)
        assert "dtype (None and 'bfloat16'), model ('a' and 'b')" in str(found)
    assert difference({"a": 1}, {"a": 1}) == ""


def test_another_version_is_refused() -> None:
    def older(wire: Wire) -> None:
        wire.say(Kind.HELLO, version=0, number="00" * 32)
        wire.expect(Kind.CHALLENGE)

    first, second = greet(older, giving())
    assert "version 1" in str(first) and "version 0" in str(second)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://10.0.0.5:8200", Address("10.0.0.5", 8200)),
        ("tcp://[::1]:1/", Address("::1", 1)),
        ("unix:///run/a b.sock", Address(path="/run/a b.sock")),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address and parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.5:8200", "tcp://host", "tcp://:5", "tcp://a:99999", "http://a:5", "unix://a/b", "unix:///",
     "tcp://a:5/x", "tcp://u@a:5", "tcp://a:5?x", "tcp://a..b:5", "tcp://" + "a" * 70 + ":5", "unix:///" + "x" * 200],
)  # fmt: skip
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"is (not an address|longer)"):
        parse_address(text)


def test_a_socket_that_was_left_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "kv.sock"))
    first, _ = listen(address)
    assert (tmp_path / "kv.sock").stat().st_mode & 0o777 == 0o600
    with first, pytest.raises(OSError, match="another engine listens"):
        listen(address)
    second, _ = listen(address)
    with second:
        connect(address, 1.0).close()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="no socket"):
        listen(Address(path=str(tmp_path / "file")))
    assert (tmp_path / "file").read_text() == "mine"


def test_shared_memory_that_may_shrink_is_not_mapped(tmp_path: Path) -> None:
    """Reading what was cut off would kill the process."""
    import os

    for size in (100, 5000):
        file = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(file, 4096)
        with pytest.raises(BrokenFrame, match="shared memory"):
            Mapped(file, size, None)
