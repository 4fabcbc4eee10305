"""Two ends of a real connection, in two threads."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.errors import StartupError
from engine.nodes import proof
from engine.nodes.proof import NotProven, prove_to_node, prove_to_rank0, read_secret
from engine.nodes.sealed_channel import SealedChannel

SECRET = b"a secret of enough bytes"


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


def outcome(run: Callable[[], bytes]) -> bytes | str:
    try:
        return run()
    except NotProven as error:
        return str(error)


def proven(rank0: bytes, node: bytes) -> list[bytes | str]:
    """What each side has: the key, or why it goes no further."""

    def answer(theirs: socket.socket) -> bytes | str:
        found = outcome(lambda: prove_to_rank0(theirs, node))
        if isinstance(found, str):
            theirs.shutdown(socket.SHUT_RDWR)
        return found

    with connected() as (ours, theirs), ThreadPoolExecutor(1) as threads:
        answering = threads.submit(answer, theirs)
        return [outcome(lambda: prove_to_node(ours, rank0)), answering.result()]


def test_who_knows_the_secret_gets_a_key_of_the_connection() -> None:
    first, second = proven(SECRET, SECRET)
    assert isinstance(first, bytes)
    assert first == second
    assert proven(SECRET, SECRET)[0] != first


def test_who_does_not_is_refused_by_the_node() -> None:
    assert proven(b"another of enough bytes", SECRET) == [
        "it does not accept the secret",
        "it does not know the secret",
    ]


def test_a_stranger_learns_nothing_that_depends_on_the_secret() -> None:
    with connected() as (ours, theirs), ThreadPoolExecutor(1) as threads:
        answer = threads.submit(outcome, lambda: prove_to_rank0(theirs, SECRET))
        ours.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1:7100\r\nuser-agent: a scanner of ports\r\n\r\n")
        assert answer.result() == "it does not know the secret"
        theirs.shutdown(socket.SHUT_WR)
        assert ours.recv(1000).startswith(b"tollgate ranks 1\n")
        assert ours.recv(1000) == b""


def test_a_node_without_the_secret_is_refused_by_rank_0() -> None:
    with connected() as (ours, theirs):
        theirs.sendall(b"tollgate ranks 1\n" + bytes(32) + bytes(32))
        with pytest.raises(NotProven, match="it does not know the secret"):
            prove_to_node(ours, SECRET)
    with connected() as (ours, theirs):
        theirs.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n\r\n")
        with pytest.raises(NotProven, match="no rank of this version"):
            prove_to_node(ours, SECRET)


def test_one_that_says_a_byte_now_and_then_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is for the whole proof, not from one byte to the next."""
    now = 0.0

    def later() -> float:
        nonlocal now
        now += proof.TIMEOUT / 4
        return now

    monkeypatch.setattr(proof, "time", SimpleNamespace(monotonic=later))
    with connected() as (_, theirs):
        answer = _Slow(theirs)
        with pytest.raises(NotProven, match="in time"):
            prove_to_rank0(answer, SECRET)  # type: ignore[arg-type]
        assert answer.count <= 4


class _Slow:
    """The other side of it sends a byte whenever one is read."""

    def __init__(self, sock: socket.socket) -> None:
        self.settimeout, self.sendall, self.count = sock.settimeout, sock.sendall, 0

    def recv(self, count: int) -> bytes:
        self.count += 1
        return b"x"


@contextmanager
def channels() -> Iterator[tuple[SealedChannel, SealedChannel]]:
    with connected() as (ours, theirs):
        yield SealedChannel(ours, b"key", rank0=True), SealedChannel(theirs, b"key", rank0=False)


def test_messages_go_both_ways_in_order() -> None:
    with channels() as (rank0, node):
        for message in ([1, 2], "x" * 100_000):
            rank0.send(message)
            assert node.receive() == [message]
        node.send(("answer", 3))
        assert rank0.receive() == [("answer", 3)]
        node.close()
        with pytest.raises(EOFError, match="gone"):
            rank0.receive()


@pytest.mark.parametrize("change", ["bit", "repeated", "reflected", "length"])
def test_what_others_put_in_between_is_never_unpickled(change: str) -> None:
    with connected() as (ours, between), connected() as (onward, theirs):
        rank0, node = SealedChannel(ours, b"key", rank0=True), SealedChannel(theirs, b"key", rank0=False)
        rank0.send("a message")
        frame = between.recv(10_000)
        if change == "bit":
            frame = frame[:-2] + bytes([frame[-2] ^ 1]) + frame[-1:]
        if change == "length":
            frame = b"\xff" + frame[1:]
        if change == "reflected":
            between.sendall(frame)
            node, frame = rank0, b""
        if change == "repeated":
            onward.sendall(frame)
            assert node.receive() == ["a message"]
        onward.sendall(frame)
        with pytest.raises(EOFError, match="what came is"):
            node.receive()


def test_a_host_that_vanishes_is_noticed_within_five_seconds() -> None:
    """By the system: nothing here waits for it."""
    with channels() as (rank0, _):
        idle, interval, probes, unsent = (
            rank0.socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        )
        assert rank0.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert idle + interval * probes <= 5
        assert unsent <= 5000


@pytest.mark.parametrize(
    ("secret", "mode", "said"),
    [
        (b"0123456789abcdef\n", 0o644, "chmod 600"),
        (b"short\n", 0o600, "openssl rand"),
        (None, 0, "cannot be read"),
    ],
)
def test_a_secret_that_is_none_is_refused(tmp_path: Path, secret: bytes | None, mode: int, said: str) -> None:
    path = tmp_path / "secret"
    if secret is not None:
        path.write_bytes(secret)
        path.chmod(mode)
    with pytest.raises(StartupError, match=said):
        read_secret(path, "--nodes-secret")


def test_a_secret_is_read_without_its_line_end(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o600)
    assert read_secret(path, "--nodes-secret") == SECRET
