"""Servers that answer once too often, too early, or without end: none of it may reach the next request."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import httpx
import pytest

from gateway.backends.answer_ids import ENOUGH
from gateway.backends.endpoint import Endpoint
from gateway.backends.http1 import Http1Client
from gateway.backends.openai import OpenAIBackend
from gateway.backends.upstream_connection import AT_ONCE, MAX_HEAD, Response, UpstreamConnection
from gateway.errors import UpstreamFailed
from gateway.policy.schema import Target
from tests.fakes import Action, FakeUpstream, Script, a_call, completion, delta, head, reply, sse, stream

pytestmark = pytest.mark.anyio

SURPLUS = head(200, {"content-length": "7"}) + b"another"
LONG = 3600.0


@pytest.fixture
async def client() -> AsyncIterator[Http1Client]:
    """Connections do not rest: what is told apart is told apart without it."""
    client = Http1Client(authorities=ssl.create_default_context, rest=0)
    yield client
    await client.aclose()


async def post(client: Http1Client, port: int, body: bytes = b"{}", **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.send(Endpoint("POST", f"http://127.0.0.1:{port}/"), named, body, connect=60.0)


async def answer(client: Http1Client, port: int, body: bytes = b"{}", **headers: str) -> bytes:
    async with asyncio.timeout(300):
        return b"".join([part async for part in await post(client, port, body, **headers)])


def the_connection(client: Http1Client) -> UpstreamConnection:
    (connection,) = client._open
    return connection


async def lost(connection: UpstreamConnection) -> None:
    async with asyncio.timeout(300):
        while connection.usable:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw(serve: Serve) -> AsyncIterator[int]:
    """A server that does with each connection as told, and leaves it open after that; its port."""
    writers: list[asyncio.StreamWriter] = []

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0)


# A surplus answer


@pytest.mark.parametrize(("rest", "connections"), [(LONG, 2), (0.0, 1)], ids=["resting", "rested"])
async def test_a_connection_rests_after_an_answer(
    upstream: FakeUpstream, rest: float, connections: int
) -> None:
    client = Http1Client(authorities=ssl.create_default_context, rest=rest)
    for _ in range(2):
        await answer(client, upstream.port)
    assert upstream.connections == connections
    await client.aclose()


@pytest.mark.parametrize("apart", [None, 0.0, 0.02], ids=["with it", "at once", "later"])
async def test_a_surplus_answer_goes_to_nobody(
    upstream: FakeUpstream, client: Http1Client, apart: float | None
) -> None:
    surplus = (
        (*reply(b"one")[:-1], reply(b"one")[-1] + SURPLUS)
        if apart is None
        else (*reply(b"one"), apart, SURPLUS)
    )
    upstream.scripts = [surplus, reply(b"two")]
    assert await answer(client, upstream.port) == b"one"
    connection = the_connection(client) if client._open else None
    if connection is not None:
        await lost(connection)
    for _ in range(3):
        assert await answer(client, upstream.port) == b"two"
    assert upstream.connections == 4, "a server that has done it once is not trusted again"


class Blocking:
    """A server in a thread, that writes while the event loop stands still."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.go = threading.Event()
        self.accepted: list[socket.socket] = []
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def serve(self) -> None:
        for number in range(2):
            connection, _ = self.listener.accept()
            self.accepted.append(connection)
            connection.recv(65536)
            connection.sendall(reply(b"answer %d" % number)[0])
            if number == 0:
                self.go.wait()
                connection.sendall(SURPLUS)


@contextmanager
def blocking() -> Iterator[Blocking]:
    server = Blocking()
    server.thread.start()
    yield server
    server.go.set()
    server.thread.join(60)
    for sock in (*server.accepted, server.listener):
        sock.close()


async def test_bytes_that_wait_when_a_connection_is_taken_up_again(client: Http1Client) -> None:
    with blocking() as server:
        assert await answer(client, server.port) == b"answer 0"
        waiting = select.poll()
        waiting.register(the_connection(client)._fd, select.POLLIN)
        server.go.set()
        assert waiting.poll(60_000), "they have come, and the loop has not run"
        assert await answer(client, server.port) == b"answer 1"


async def test_silence_that_is_complained_of_is_no_surplus(
    upstream: FakeUpstream, client: Http1Client
) -> None:
    upstream.scripts = [
        (*reply(b"one"), 0.01, head(408, {"connection": "close", "content-length": "0"}), Action.CLOSE),
        reply(b"two"),
    ]
    assert await answer(client, upstream.port) == b"one"
    await lost(the_connection(client))
    for _ in range(3):
        assert await answer(client, upstream.port) == b"two"
    assert upstream.connections == 2


# An answer that comes too early

BIG = b"x" * 16 * 2**20


async def test_an_early_refusal_is_told_and_its_connection_not_used_again(client: Http1Client) -> None:
    """The server never reads the rest: another request would wait behind it for ever."""
    refusal = head(413, {"content-length": "9"}) + b"too large"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"content-length: 2\r\n" in await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(2)
            writer.write(reply(b"fine")[0])
        writer.write(refusal)

    async with raw(serve) as port:
        for _ in range(2):
            async with asyncio.timeout(300):
                refused = await post(client, port, BIG)
                assert refused.status == 413
                assert b"".join([part async for part in refused]) == b"too large"
            assert await answer(client, port) == b"fine"


async def test_a_refusal_of_much_that_may_not_have_been_read(
    upstream: FakeUpstream, client: Http1Client
) -> None:
    upstream.scripts = [reply(b"no", status=400), reply(b"no", status=400), reply(b"yes")]
    assert await answer(client, upstream.port) == b"no"
    assert await answer(client, upstream.port, b"x" * AT_ONCE) == b"no"
    assert upstream.connections == 1, "it was small, and read"
    assert await answer(client, upstream.port) == b"yes"
    assert upstream.connections == 2


@pytest.mark.parametrize("status", [200, 400])
async def test_an_answer_sent_before_its_question_arrived_is_anothers(
    client: Http1Client, status: int
) -> None:
    """The second request is not read at all: what answers it was meant for the first."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(reply(b"one")[0])
        await reader.readexactly(1)
        writer.write(head(status, {"content-length": "7"}) + b"another")

    async with raw(serve) as port:
        assert await answer(client, port) == b"one"
        if status == 400:
            # The first of a large request's error is believed, as it may well be early; that of 200 cannot be.
            async with asyncio.timeout(300):
                assert (await post(client, port, BIG)).status == 400
        else:
            with pytest.raises(httpx.RemoteProtocolError, match="before its question"):
                await answer(client, port, BIG)
        assert await answer(client, port) == b"one"


# Ids


async def test_an_answer_that_names_the_request_before(upstream: FakeUpstream, client: Http1Client) -> None:
    upstream.scripts = [
        reply(b"one", headers={"x-request-id": "req_1"}),
        reply(b"one", headers={"x-request-id": "req_1"}),
        reply(b"two"),
    ]
    assert await answer(client, upstream.port, x_request_id="req_1") == b"one"
    with pytest.raises(httpx.RemoteProtocolError, match="names the request before"):
        await answer(client, upstream.port, x_request_id="req_2")
    assert await answer(client, upstream.port, x_request_id="req_2") == b"two"
    assert upstream.connections == 2


@pytest.mark.parametrize("name", ["x-request-id", "request-id"])
async def test_an_answer_that_comes_once_more(upstream: FakeUpstream, client: Http1Client, name: str) -> None:
    told = [*map(an_id, range(ENOUGH)), *[an_id(ENOUGH)] * 3]
    upstream.scripts = [reply(b"-", headers={name: one}) for one in told]
    # The same question may have the same answer, out of a cache.
    for question in (*range(ENOUGH), ENOUGH, ENOUGH):
        await answer(client, upstream.port, b"%d" % question)
    assert upstream.connections == 1
    with pytest.raises(httpx.RemoteProtocolError, match="once more"):
        await answer(client, upstream.port, b"another")


async def test_ids_that_are_all_the_same_mean_nothing(upstream: FakeUpstream, client: Http1Client) -> None:
    upstream.scripts = [reply(b"-", headers={"x-request-id": "static"})]
    for question in (b"1", b"2", b"3"):
        await answer(client, upstream.port, question)
    assert upstream.connections == 1


FEW = {
    "one of each of two models": lambda number: an_id(number // 2 % 2),
    "each of many twice": lambda number: an_id(number // 2),
    "drawn from a few": lambda number: f"chatcmpl-{number * number % 997}",
    "one a second": lambda number: f"chatcmpl-{1_700_000_000 + max(number, 100)}",
}


@pytest.mark.parametrize("told", FEW.values(), ids=FEW.keys())
async def test_ids_that_several_answers_may_have_mean_nothing(
    upstream: FakeUpstream, client: Http1Client, told: Callable[[int], str]
) -> None:
    numbers = [*range(2 * ENOUGH), *[2 * ENOUGH] * 3]
    upstream.scripts = [reply(b"-", headers={"request-id": told(number)}) for number in numbers]
    for question, _ in enumerate(numbers):
        await answer(client, upstream.port, b"%d" % question)
    assert upstream.connections == 1


def an_id(number: int) -> str:
    """As long as real ones are."""
    return f"chatcmpl-{number:032x}"


def streamed(id: str) -> Script:
    return stream(sse({**delta(id), "id": id}), sse({**delta(finish="stop"), "id": id}))


def whole(id: str) -> Script:
    return reply(completion(id, id=id))


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
async def test_the_id_in_an_answers_body_counts(
    upstream: FakeUpstream, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = streamed if streams else whole
    ids = [*map(an_id, range(ENOUGH)), an_id(ENOUGH), an_id(ENOUGH), an_id(ENOUGH + 1)]
    upstream.scripts = [script(one) for one in ids]
    backend = OpenAIBackend("up", base_url=upstream.base_url, probe_url=upstream.base_url)
    backend._exchange._client._direct.rest = 0
    target = Target(backend="up", model="upstream-model")

    async def ask(question: str) -> str:
        call = a_call(stream=streams, messages=({"role": "user", "content": question},))
        return "".join(
            [chunk.delta["content"] async for chunk in backend.stream(call, target) if chunk.delta]
        )

    for one in ids[: ENOUGH + 1]:
        assert await ask(f"of {one}") == one
    assert upstream.connections == 1
    with pytest.raises(UpstreamFailed, match="another request"):
        await ask("three")
    assert await ask("three") == ids[-1]
    assert upstream.connections == 2
    await backend.aclose()


async def test_ids_that_are_the_same_in_all_answers_of_an_api_mean_nothing(upstream: FakeUpstream) -> None:
    """Callers that alternate between dialects, and between streams and whole answers, are no desynchronisation."""
    text = {"text": "c", "index": 0, "finish_reason": "stop", "logprobs": None}
    completed = reply({"object": "text_completion", "choices": [text], "id": "cmpl-x"})
    kinds = {"whole": whole("chatcmpl-x"), "stream": streamed("chunk-x"), "prompt": completed}
    asked = ["whole", "stream", "stream", "prompt", "prompt", "whole", "whole", "stream", "stream"]
    upstream.scripts = [kinds[kind] for kind in asked]
    backend = OpenAIBackend("up", base_url=upstream.base_url, probe_url=upstream.base_url)
    backend._exchange._client._direct.rest = 0
    target = Target(backend="up", model="upstream-model")
    for number, kind in enumerate(asked):
        question = f"question {number}"
        what = (
            {"prompt": question}
            if kind == "prompt"
            else {"messages": ({"role": "user", "content": question},)}
        )
        call = a_call(stream=kind == "stream", **what)
        assert [chunk async for chunk in backend.stream(call, target)]
    assert upstream.connections == 1
    await backend.aclose()


# Without end


@pytest.mark.parametrize("more", [b"x: y\r\n", b"x" * 6], ids=["lines", "one line"])
async def test_trailers_without_end_are_not_read(
    upstream: FakeUpstream, client: Http1Client, more: bytes
) -> None:
    upstream.scripts = [
        (head(200, {"transfer-encoding": "chunked"}) + b"1\r\nx\r\n0\r\n", *[more * 1000] * 1000)
    ]
    with pytest.raises(httpx.RemoteProtocolError, match="trailers"):
        await answer(client, upstream.port)
    (request,) = upstream.requests
    await asyncio.wait_for(request.left.wait(), 300)


async def test_chunk_extensions_without_end_are_not_read(upstream: FakeUpstream, client: Http1Client) -> None:
    upstream.scripts = [
        (head(200, {"transfer-encoding": "chunked"}) + b"1\r\nx\r\n1;", *[b"x" * 5000] * 1000)
    ]
    with pytest.raises(httpx.RemoteProtocolError, match="extensions"):
        await answer(client, upstream.port)


async def test_interim_answers_without_end_are_not_read(upstream: FakeUpstream, client: Http1Client) -> None:
    upstream.scripts = [tuple([b"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n" * 100] * 1000)]
    with pytest.raises(httpx.RemoteProtocolError, match=str(MAX_HEAD)):
        await answer(client, upstream.port)


async def test_trailers_are_no_headers(upstream: FakeUpstream, client: Http1Client) -> None:
    upstream.scripts = [
        (head(200, {"transfer-encoding": "chunked"}) + b"1\r\nx\r\n0\r\nx-request-id: y\r\n\r\n",),
    ]
    response = await post(client, upstream.port)
    assert [part async for part in response] == [b"x"]
    assert "x-request-id" not in response.headers
    assert await answer(client, upstream.port) == b"x"
    assert upstream.connections == 1
