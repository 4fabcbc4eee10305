"""Clients that are slow, talkative or confused, on a real server; the app behind it says how long the body was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from gateway.connection import HANGUP, Connection

pytestmark = pytest.mark.anyio

PATIENCE = 0.2
left = asyncio.Event()
"""Set when a client of ``/endless`` is seen to have gone."""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    length, more = 0, scope["path"] != "/refused"
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    if scope["path"] == "/endless":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not scope[HANGUP].gone:
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            await asyncio.sleep(0)
        left.set()
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
async def connected(patience: float) -> AsyncIterator[Streams]:
    kind = type("Measured", (Connection,), {"patience": patience, "stall": patience})
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, http=kind, lifespan="off", log_config=None, timeout_keep_alive=60)
    )
    serving = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
    yield reader, writer
    writer.close()
    server.should_exit = True
    await serving


@pytest.fixture
async def streams() -> AsyncIterator[Streams]:
    async with connected(patience=60) as both:
        yield both


@pytest.fixture
async def impatient() -> AsyncIterator[Streams]:
    async with connected(patience=PATIENCE) as both:
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
    async with connected(patience=1) as (reader, writer):
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


async def test_a_client_that_takes_nothing_of_its_answer_is_let_go(impatient: Streams) -> None:
    _, writer = impatient
    left.clear()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(b"GET /endless HTTP/1.1\r\n\r\n")
    await asyncio.wait_for(left.wait(), 30)


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
