"""Clients that are slow, talkative or confused, on a real server; the app behind it says how long the body was."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from gateway.server import lingering
from gateway.server.connection import Connection
from gateway.server.connection_limits import ConnectionLimiter, ConnectionLimits
from gateway.server.cycle import CONNECTION_STATE, TAKE_BY

pytestmark = pytest.mark.anyio

PATIENCE = 0.2
LARGE = 30_000_000
left = asyncio.Event()
"""Set when a client of ``/endless`` is seen to have gone; each test has one of its own."""


@pytest.fixture(autouse=True)
def nobody_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "left", asyncio.Event())


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    length, more = 0, scope["path"] != "/refused"
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    if scope["path"] == "/proven":
        scope[CONNECTION_STATE].authenticate()
    if scope["path"] == "/timed":
        scope[TAKE_BY] = asyncio.get_running_loop().time() + PATIENCE
    if scope["path"] in ("/endless", "/timed"):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not scope[CONNECTION_STATE].disconnected:
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            await asyncio.sleep(0)
        left.set()
        return
    if scope["path"] == "/large":
        size = b"%d" % LARGE
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", size)]})
        scope[CONNECTION_STATE].on_disconnect = left.set
        await send({"type": "http.response.body", "body": b"x" * LARGE})
        return
    if scope["path"] == "/events":
        kind = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        write = scope[CONNECTION_STATE].write_events
        # The head goes with the first part, and what is written at once follows it.
        written = [write(lambda: b"data: 0\n\n")]
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        assert write(bytes)  # nothing to write is no end
        written.append(write(lambda: b"data: 2\n\n"))
        await send({"type": "http.response.body", "body": b"data: %d%d\n\n" % tuple(written)})
        assert not write(lambda: b"data: late\n\n")
        assert scope[CONNECTION_STATE].write_events is None
        return
    if scope["path"] == "/unread":
        kind = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
        write = scope[CONNECTION_STATE].write_events
        while write(lambda: b"x" * 100_000):
            pass  # without a bound only where nobody minds that the client does not read
        while not scope[CONNECTION_STATE].disconnected:
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        assert not write(lambda: b"x")
        left.set()
        return
    if scope["path"] == "/waits":
        scope[CONNECTION_STATE].on_disconnect = left.set
        await left.wait()
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(PATIENCE * 2.5)
    body = str(length).encode()
    if scope["path"] == "/names":
        body = b",".join(name for name, _ in scope["headers"])
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]}
    )
    await send({"type": "http.response.body", "body": body})


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def running(**bounds: Any) -> AsyncIterator[tuple[str, int]]:
    """A server whose connections have these bounds; its address."""
    kind = type("Measured", (Connection,), bounds)
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, http=kind, lifespan="off", log_config=None, timeout_keep_alive=60)
    )
    serving = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()
    server.should_exit = True
    await serving


@asynccontextmanager
async def connected(read_timeout: float, **bounds: Any) -> AsyncIterator[Streams]:
    async with running(read_timeout=read_timeout, **{"write_timeout": read_timeout, **bounds}) as address:
        reader, writer = await asyncio.open_connection(*address)
        yield reader, writer
        writer.close()


@pytest.fixture
async def streams() -> AsyncIterator[Streams]:
    async with connected(read_timeout=60) as both:
        yield both


@pytest.fixture
async def impatient() -> AsyncIterator[Streams]:
    async with connected(read_timeout=PATIENCE) as both:
        yield both


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 300)
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    return int(head[9:12]), await reader.readexactly(length)


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 300) == b""
    except ConnectionResetError:
        return True


async def test_a_head_without_end_is_refused_in_openais_words(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"GET / HTTP/1.1\r\nx: ")
    await asyncio.sleep(0.05)
    for _ in range(64):
        writer.write(b"a" * 1024)
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    writer.write(b"a")
    status, body = await answer(reader)
    assert status == 431
    assert json.loads(body)["error"]["code"] == "headers_too_large"


async def test_a_large_body_before_another_head_is_no_head(streams: Streams) -> None:
    reader, writer = streams
    size = 200_000
    writer.write(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size + b"GET / HTT")
    assert await answer(reader) == (200, b"%d" % size)
    writer.write(b"P/1.1\r\n\r\n")
    assert await answer(reader) == (200, b"0")


async def test_what_is_no_http_is_refused_in_openais_words(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"EHLO there\r\n\r\n")
    status, body = await answer(reader)
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_http")


@pytest.mark.parametrize("coding", ["chunked", "xchunked", "gzip"])
async def test_a_body_that_cannot_be_told_apart_is_refused_too(streams: Streams, coding: str) -> None:
    reader, writer = streams
    writer.write(b"POST / HTTP/1.1\r\ntransfer-encoding: %b\r\n\r\nno size\r\n" % coding.encode())
    status, body = await answer(reader)
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_http")
    assert await closed(reader)


async def test_a_body_that_goes_wrong_later_is_refused_too(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
    await asyncio.sleep(0.02)
    writer.write(b"-1\r\nx\r\n")
    status, body = await answer(reader)
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_http")
    assert await closed(reader)


async def test_nonsense_behind_a_request_is_no_answer_to_it(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"GET /slow HTTP/1.1\r\n\r\nEHLO there\r\n\r\n")
    assert await closed(reader)


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HT", b"GET / HTTP/1.1\r\nx: y\r\n", b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nabc"],
)
async def test_silence_before_a_request_is_whole_ends_the_connection(impatient: Streams, sent: bytes) -> None:
    reader, writer = impatient
    writer.write(sent)
    assert await closed(reader)


async def test_a_head_that_trickles_in_is_not_waited_for(impatient: Streams) -> None:
    reader, writer = impatient

    async def trickle() -> None:
        for byte in b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 10_000:
            writer.write(bytes([byte]))
            await asyncio.sleep(PATIENCE / 10)

    trickling = asyncio.create_task(trickle())
    assert await closed(reader)
    trickling.cancel()


async def test_a_body_may_take_long_as_long_as_it_keeps_coming() -> None:
    async with connected(read_timeout=1) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\ncontent-length: 7\r\n\r\n")
        for _ in range(7):
            await asyncio.sleep(0.2)
            writer.write(b"x")
        assert await answer(reader) == (200, b"7")


@pytest.mark.parametrize(
    ("sent", "more"),
    [
        (b"POST /refused HTTP/1.1\r\ncontent-length: 9999\r\n\r\n", b"x"),
        (b"POST /refused HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;", b"x"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n"),
        (b"", b"\r\n"),
        (b"GET / HTTP/1.1\r\n\r\n", b"\r\n"),
    ],
)
async def test_what_trickles_in_and_is_no_progress_ends_the_connection(
    impatient: Streams, sent: bytes, more: bytes
) -> None:
    reader, writer = impatient

    async def trickle() -> None:
        writer.write(sent)
        while True:
            await asyncio.sleep(PATIENCE / 10)
            writer.write(more)

    trickling = asyncio.create_task(trickle())
    with suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 30)  # to its end
    trickling.cancel()


@pytest.mark.parametrize("more", [b"x: y\r\n", b"x" * 6])
async def test_trailers_without_end_are_refused(streams: Streams, more: bytes) -> None:
    reader, writer = streams
    writer.write(b"POST /refused HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
    assert await answer(reader) == (200, b"0")
    writer.write(b"0\r\n")

    async def flood() -> None:
        while True:
            writer.write(more * 1000)
            await writer.drain()
            await asyncio.sleep(0.001)

    flooding = asyncio.create_task(flood())
    with suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 30)
    flooding.cancel()


async def test_events_are_written_at_once_between_head_and_end(streams: Streams) -> None:
    reader, writer = streams
    for _ in range(2):
        writer.write(b"GET /events HTTP/1.1\r\n\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 300)
        body = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 300)
        assert b"chunked" in head
        assert [line for line in body.split(b"\r\n") if line.startswith(b"data")] == [
            b"data: 1\n\n",
            b"data: 2\n\n",
            b"data: 01\n\n",
        ]


async def test_events_for_a_client_that_does_not_read_are_not_written_at_once(impatient: Streams) -> None:
    reader, writer = impatient
    writer.write(b"GET /unread HTTP/1.1\r\n\r\n")
    await asyncio.wait_for(left.wait(), 300)
    writer.close()
    del reader


async def test_a_client_that_takes_nothing_of_its_answer_is_let_go(impatient: Streams) -> None:
    _, writer = impatient
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /endless HTTP/1.1\r\n\r\n")
    await asyncio.wait_for(left.wait(), 30)


@pytest.mark.parametrize("path", [b"/endless", b"/timed"])
async def test_a_client_that_takes_a_little_now_and_then_is_let_go_as_well(path: bytes) -> None:
    """After some windows in which it took less than a tenth; or, however much it takes, at the answer's own end."""
    stall = {b"/endless": PATIENCE, b"/timed": 300.0}[path]
    async with running(write_timeout=stall) as address:
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, address)
            await loop.sock_sendall(sock, b"GET " + path + b" HTTP/1.1\r\n\r\n")

            async def sip() -> None:
                while await loop.sock_recv(sock, 10):  # noqa: ASYNC110
                    await asyncio.sleep(PATIENCE / 10)

            sipping = asyncio.create_task(sip())
            await asyncio.wait_for(left.wait(), 300)
            sipping.cancel()
            await asyncio.gather(sipping, return_exceptions=True)


async def test_what_is_not_taken_of_a_connection_that_is_closed_does_not_keep_it_open() -> None:
    async with running(read_timeout=PATIENCE, write_timeout=300.0) as address:
        _, writer = await asyncio.open_connection(*address)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /large HTTP/1.1\r\nconnection: close\r\n\r\n")
        await asyncio.wait_for(left.wait(), 300)
        writer.close()


async def test_a_body_is_passed_over_only_so_far() -> None:
    async with connected(read_timeout=300, max_unread_body=100_000) as (reader, writer):
        writer.write(b"POST /refused HTTP/1.1\r\ncontent-length: 100000000\r\n\r\n")
        assert await answer(reader) == (200, b"0")
        writer.write(b"x" * 99_000)
        await writer.drain()
        writer.write(b"x" * 2_000)
        assert await closed(reader)


async def test_only_so_many_requests_may_wait() -> None:
    async with connected(read_timeout=300, max_pipeline=5) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 5)
        assert [await answer(reader) for _ in range(5)] == [(200, b"0")] * 5
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 1000)
        assert await closed(reader)


# How many there may be


async def test_too_many_requests_in_line_are_no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    """Each such client would put a traceback into the log."""
    async with connected(read_timeout=60, max_pipeline=1) as (reader, writer):
        writer.write(b"GET /waits HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
        assert await closed(reader)
        async with asyncio.timeout(60):
            await left.wait()
        await asyncio.sleep(0.05)
    assert not caplog.records


async def test_unauthenticated_make_room_for_unauthenticated_but_not_who_proved_a_key() -> None:
    async with running(limiter=ConnectionLimiter(ConnectionLimits(100, 3, 3))) as address:
        known_reader, known_writer = await asyncio.open_connection(*address)
        known_writer.write(b"GET /proven HTTP/1.1\r\n\r\n")
        assert await answer(known_reader) == (200, b"0")
        unauthenticated = []
        for _ in range(5):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await answer(reader) == (200, b"0")
            unauthenticated.append((reader, writer))
        assert all([await closed(reader) for reader, _ in unauthenticated[:2]])
        for reader, writer in (*unauthenticated[2:], (known_reader, known_writer)):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await answer(reader) == (200, b"0")
        for _, writer in (*unauthenticated, (known_reader, known_writer)):
            writer.close()


async def test_one_too_many_is_told_so() -> None:
    async with running(limiter=ConnectionLimiter(ConnectionLimits(1, 1, 1))) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /proven HTTP/1.1\r\n\r\nGET /slow HTTP/1.1\r\n\r\n")
        assert await answer(reader) == (200, b"0")
        other, other_writer = await asyncio.open_connection(*address)
        head = await asyncio.wait_for(other.readuntil(b"\r\n\r\n"), 300)
        assert head.startswith(b"HTTP/1.1 503") and b"\r\nretry-after: 1\r\n" in head
        assert json.loads(await other.read())["error"]["code"] == "too_many_connections"
        assert await answer(reader) == (200, b"0")
        other_writer.close()
        writer.close()


async def test_a_stranger_rests_no_longer_than_a_request_may_take() -> None:
    async with running(
        limiter=ConnectionLimiter(ConnectionLimits(9, 9, 9)), read_timeout=PATIENCE
    ) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await answer(reader) == (200, b"0")
        assert await closed(reader)
        writer.close()


async def test_trailers_are_no_headers(streams: Streams) -> None:
    reader, writer = streams
    head = b"POST /names HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head + b"1\r\nx\r\n0\r\nauthorization: Bearer x\r\nx-forwarded-for: 10.0.0.1\r\n\r\n")
    assert await answer(reader) == (200, b"transfer-encoding")
    writer.write(b"GET /names HTTP/1.1\r\nx: y\r\n\r\n")
    assert await answer(reader) == (200, b"x")


async def test_an_answer_to_who_waits_with_the_body_ends_the_connection(streams: Streams) -> None:
    """He may send it now or not: nobody could tell what follows."""
    reader, writer = streams
    writer.write(b"POST /refused HTTP/1.1\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n")
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    assert head.startswith(b"HTTP/1.1 200") and b"\r\nconnection: close\r\n" in head
    assert await asyncio.wait_for(reader.read(), 60) == b"0"


async def test_a_slow_answer_and_a_rest_between_requests_are_not_silence(impatient: Streams) -> None:
    reader, writer = impatient
    for _ in range(2):
        writer.write(b"GET /slow HTTP/1.1\r\n\r\n")
        assert await answer(reader) == (200, b"0")
        await asyncio.sleep(PATIENCE * 2)


# An offer of another protocol

OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
WHOLE = b"content-length: 5\r\n\r\nhello"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n"


@pytest.mark.parametrize("body", [WHOLE, CHUNKED], ids=["whole", "chunked"])
@pytest.mark.parametrize("piece", [1, 7, 10_000])
async def test_an_offer_of_another_protocol_is_ignored(streams: Streams, body: bytes, piece: int) -> None:
    reader, writer = streams
    sent = b"POST /a?b HTTP/1.1\r\nhost: x\r\n" + OFFER + body
    for start in range(0, len(sent), piece):
        writer.write(sent[start : start + piece])
        await asyncio.sleep(0)
    assert await answer(reader) == (200, b"5")
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await answer(reader) == (200, b"0"), "the connection goes on in HTTP/1.1"


@pytest.mark.parametrize("name", [b"h2c", b"websocket", b"TLS/1.0, HTTP/2.0"])
async def test_offers_among_requests_that_come_all_at_once(streams: Streams, name: bytes) -> None:
    reader, writer = streams
    offer = b"Connection: keep-alive, UPGRADE\r\nUpgrade: " + name + b"\r\n"
    writer.write(
        b"POST / HTTP/1.1\r\n" + offer + b"content-length: 3\r\n\r\nabc"
        b"GET / HTTP/1.1\r\n" + offer + b"\r\n"
        b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\nab"
        b"POST / HTTP/1.1\r\n" + offer + CHUNKED
    )
    assert [(await answer(reader))[1] for _ in range(4)] == [b"3", b"0", b"2", b"5"]


async def test_what_else_the_connection_header_says_counts(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"POST / HTTP/1.1\r\nconnection: upgrade, close\r\nupgrade: h2c\r\n" + WHOLE)
    assert await answer(reader) == (200, b"5")
    assert await closed(reader)


async def test_a_body_behind_an_offer_is_never_taken_for_a_request(streams: Streams) -> None:
    reader, writer = streams
    hidden = b"GET /slow HTTP/1.1\r\n\r\n"
    writer.write(b"POST / HTTP/1.1\r\n" + OFFER + b"content-length: %d\r\n\r\n" % len(hidden))
    await asyncio.sleep(0.02)
    writer.write(hidden + b"GET / HTTP/1.1\r\n\r\n")
    assert await answer(reader) == (200, b"%d" % len(hidden))
    assert await answer(reader) == (200, b"0")


async def test_an_offer_with_two_lengths_is_refused_as_without(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"POST / HTTP/1.1\r\n" + OFFER + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n")
    assert (await answer(reader))[0] == 400


@pytest.mark.parametrize("target", [b"example.org:443", b"/"])
async def test_it_is_no_proxy(streams: Streams, target: bytes) -> None:
    reader, writer = streams
    writer.write(b"CONNECT " + target + b" HTTP/1.1\r\n\r\n")
    assert (await answer(reader))[0] == 400
    assert await closed(reader)


# The end of a client's sending


async def test_a_client_that_ends_its_sending_is_answered(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"POST /slow HTTP/1.1\r\n" + WHOLE)
    writer.write_eof()
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert await answer(reader) == (200, b"5")
    assert await closed(reader)


async def test_all_that_was_asked_before_the_end_is_answered(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"GET /slow HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
    writer.write_eof()
    assert await answer(reader) == (200, b"0"), "HTTP/1.0 knows of no interim answers"
    assert await closed(reader)


async def test_pipelined_requests_are_all_answered_after_the_end(streams: Streams) -> None:
    reader, writer = streams
    writer.write((b"POST / HTTP/1.1\r\n" + WHOLE) * 3)
    writer.write_eof()
    assert [await answer(reader) for _ in range(3)] == [(200, b"5")] * 3
    assert await closed(reader)


async def test_an_end_before_the_request_is_whole_ends_the_connection(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\nabc")
    writer.write_eof()
    assert await closed(reader)


# A client that still sends when it has its answer


def send_all(
    address: tuple[str, int], request: bytes, body: int, *, chunked: bool = False
) -> tuple[bytes, bool]:
    """As most clients do: what is read once all is sent, and whether all went well."""
    got, fine, piece = b"", True, b"x" * 50_000
    with socket.create_connection(address, timeout=300) as sock:
        sock.sendall(request)
        for _ in range(body // len(piece)):
            try:
                sock.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            except OSError:
                fine = False
                break
        with suppress(OSError):
            while data := sock.recv(2**16):
                got += data
            return got, fine
    return got, False


@pytest.mark.parametrize("extra", [b"", b"connection: close\r\n"], ids=["kept", "to be closed"])
@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
async def test_who_sends_all_of_a_body_before_it_reads_has_its_answer(extra: bytes, chunked: bool) -> None:
    size = 20_000_000  # more than the systems at both ends hold
    framing = b"transfer-encoding: chunked\r\n" if chunked else b"content-length: %d\r\n" % size
    request = b"POST /refused HTTP/1.1\r\n" + extra + framing + b"\r\n"
    async with running(read_timeout=300.0, max_unread_body=4_000_000) as address:
        got, in_order = await asyncio.to_thread(send_all, address, request, size, chunked=chunked)
        assert in_order
        assert got.startswith(b"HTTP/1.1 200") and got.endswith(b"\r\n\r\n0")


async def test_what_has_no_end_is_read_on_only_so_far() -> None:
    request = b"POST /refused HTTP/1.1\r\nconnection: close\r\ncontent-length: 1000000000\r\n\r\n"
    async with running(read_timeout=300.0, max_unread_body=100_000) as address:
        _, in_order = await asyncio.to_thread(send_all, address, request, 50_000_000)
        assert not in_order


async def test_who_says_nothing_more_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering, "SILENCE", PATIENCE)
    async with running(read_timeout=300.0, max_unread_body=100_000) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST /refused HTTP/1.1\r\nconnection: close\r\ncontent-length: 1000000000\r\n\r\n")
        assert await answer(reader) == (200, b"0")
        assert await closed(reader)
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(300):
                while True:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(PATIENCE * 3)
        writer.close()


async def test_a_head_that_is_refused_amid_it_is_told() -> None:
    async with running(read_timeout=300.0, max_unread_body=4_000_000) as address:
        got, in_order = await asyncio.to_thread(send_all, address, b"GET / HTTP/1.1\r\nx: ", 10_000_000)
        assert in_order
        assert got.startswith(b"HTTP/1.1 431")


async def test_a_connection_is_kept_from_its_last_response_on() -> None:
    made: list[Connection] = []

    def remembered(connection: Connection, transport: asyncio.Transport) -> None:
        made.append(connection)
        Connection.connection_made(connection, transport)

    async with connected(read_timeout=300, connection_made=remembered) as (reader, writer):
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await answer(reader) == (200, b"0")
            [connection] = made
            connection.timeout_keep_alive_handler()  # of the first response; the last is no minute old
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await answer(reader) == (200, b"0")
        connection.timeout_keep_alive = 0
        connection.timeout_keep_alive_handler()
        assert await closed(reader)
