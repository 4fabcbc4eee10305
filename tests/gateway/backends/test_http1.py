"""The fast client: pooling, framing, and every way a server can break."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.client import Client
from gateway.backends.endpoint import Endpoint, Origin
from gateway.backends.http1 import Http1Client
from gateway.backends.upstream_connection import HIGH_WATER, MAX_HEAD, STILL_THERE, Response
from tests.fakes import Action, FakeUpstream, Script, answer_events, cut_at, head, reply, stream, within

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client() -> AsyncIterator[Http1Client]:
    client = Http1Client(authorities=ssl.create_default_context, rest=0)
    yield client
    await client.aclose()


async def post(client: Http1Client, upstream: FakeUpstream, body: bytes = b"{}", **headers: str) -> Response:
    endpoint = Endpoint("POST", f"http://127.0.0.1:{upstream.port}/v1/x?y=1")
    return await client.send(endpoint, headers, body, connect=1.0)


async def whole(response: Response) -> bytes:
    return b"".join([part async for part in response])


async def test_a_request_goes_out_as_it_should(upstream: FakeUpstream, client: Http1Client) -> None:
    upstream.scripts = [reply(b"hello", kind="text/plain", headers={"x-one": "1", "X-One": "2"})]
    response = await post(client, upstream, b'{"a": 1}', authorization="Bearer k")
    assert (response.status, response.headers["content-type"]) == (200, "text/plain")
    assert response.headers["x-one"] == "1, 2"
    assert await whole(response) == b"hello"
    (request,) = upstream.requests
    assert (request.method, request.path, request.body) == ("POST", "/v1/x?y=1", b'{"a": 1}')
    assert request.headers == {
        "host": f"127.0.0.1:{upstream.port}",
        "authorization": "Bearer k",
        "content-length": "8",
    }


async def test_a_machine_that_is_gone_is_found_out(upstream: FakeUpstream, client: Http1Client) -> None:
    response = await post(client, upstream)
    (connection,) = client._open
    ours = connection._transport.get_extra_info("socket")
    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == STILL_THERE[1]
    await response.aclose()


async def test_a_connection_is_used_again_once_its_answer_was_read(
    upstream: FakeUpstream, client: Http1Client
) -> None:
    for _ in range(3):
        await whole(await post(client, upstream))
    assert upstream.connections == 1
    first, second = await post(client, upstream), await post(client, upstream)
    assert upstream.connections == 2, "two at once need two"
    await whole(first)
    await whole(second)


async def test_letting_go_early_tells_the_server(upstream: FakeUpstream, client: Http1Client) -> None:
    upstream.scripts = [stream(b"one", Action.HANG)]
    response = await post(client, upstream)
    assert await anext(response) == b"one"
    await response.aclose()
    async with asyncio.timeout(300):
        await upstream.requests[0].left.wait()
    upstream.scripts = [reply(b"next")]
    assert await whole(await post(client, upstream)) == b"next"
    assert upstream.connections == 2


async def test_cancelling_the_wait_for_an_answer_tells_the_server(
    upstream: FakeUpstream, client: Http1Client
) -> None:
    upstream.scripts = [(Action.HANG,)]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await post(client, upstream)
    async with asyncio.timeout(1):
        await upstream.requests[0].left.wait()


async def test_a_connection_that_the_server_closed_is_not_used(
    upstream: FakeUpstream, client: Http1Client
) -> None:
    upstream.scripts = [(*reply(b"bye"), Action.CLOSE), reply(b"hello")]
    assert await whole(await post(client, upstream)) == b"bye"
    await asyncio.sleep(0.02)
    assert await whole(await post(client, upstream)) == b"hello"
    assert upstream.connections == 2


async def test_a_server_that_says_close_is_believed(upstream: FakeUpstream, client: Http1Client) -> None:
    upstream.scripts = [reply(b"x", headers={"connection": "close"})]
    for _ in range(2):
        assert await whole(await post(client, upstream)) == b"x"
    assert upstream.connections == 2


async def test_idle_connections_are_closed_in_time(upstream: FakeUpstream) -> None:
    client = Http1Client(authorities=ssl.create_default_context, keepalive=0.05)
    await whole(await post(client, upstream))
    assert len(upstream.open) == 1
    async with asyncio.timeout(300):
        while upstream.open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await client.aclose()


async def test_what_nobody_asked_for_ends_the_connection(upstream: FakeUpstream, client: Http1Client) -> None:
    upstream.scripts = [
        (*reply(b"one"), 0.02, b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad"),
        reply(b"two"),
    ]
    assert await whole(await post(client, upstream)) == b"one"
    await asyncio.sleep(0.05)
    assert await whole(await post(client, upstream)) == b"two"
    assert upstream.connections == 2


@pytest.mark.parametrize(
    ("script", "body"),
    [
        ((b"HTTP/1.1 100 Continue\r\n\r\n", 0.01, *reply(b"after")), b"after"),
        ((head(200, {"content-type": "x"}) + b"until the end", Action.CLOSE), b"until the end"),
        ((head(204, {}),), b""),
        ((head(200, {"content-length": "0"}),), b""),
        (stream(b"a", b"b", b"c"), b"abc"),
    ],
    ids=["news first", "no length", "no content", "empty", "chunked"],
)
async def test_framing(upstream: FakeUpstream, client: Http1Client, script: Script, body: bytes) -> None:
    upstream.scripts = [script]
    async with asyncio.timeout(300):
        assert await whole(await post(client, upstream)) == body


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ((Action.ABORT,), httpx.ReadError),
        ((Action.CLOSE,), httpx.ReadError),
        ((head(200, {"content-length": "10"}) + b"short", Action.CLOSE), httpx.ReadError),
        (stream(b"one", Action.ABORT), httpx.ReadError),
        (stream(b"one", Action.CLOSE, whole=False), httpx.ReadError),
        ((b"SSH-2.0-OpenSSH_9.2\r\n",), httpx.RemoteProtocolError),
        ((head(200, {"transfer-encoding": "chunked"}) + b"zz\r\n",), httpx.RemoteProtocolError),
        ((b"HTTP/1.1 101 Switching Protocols\r\n\r\n",), httpx.RemoteProtocolError),
        ((b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * MAX_HEAD,), httpx.RemoteProtocolError),
    ],
    ids=[
        "abort",
        "close",
        "short",
        "stream abort",
        "stream close",
        "ssh",
        "bad chunk",
        "upgrade",
        "huge head",
    ],
)
async def test_breaks(
    upstream: FakeUpstream, client: Http1Client, script: Script, error: type[Exception]
) -> None:
    upstream.scripts = [script]
    with pytest.raises(error):
        async with asyncio.timeout(300):
            await whole(await post(client, upstream))
    upstream.scripts = [reply(b"fine")]
    assert await whole(await post(client, upstream)) == b"fine"


async def test_nobody_there(client: Http1Client) -> None:
    with pytest.raises(httpx.ConnectError):
        await client.send(Endpoint("GET", "http://127.0.0.1:1/"), {}, connect=1.0)
    with pytest.raises(httpx.ConnectError):
        await client.send(Endpoint("GET", "http://host.invalid/"), {}, connect=5.0)


async def test_a_header_cannot_smuggle_another(upstream: FakeUpstream, client: Http1Client) -> None:
    for value in ("a\r\nx: y", "a\ny", "a\0b", "a\r\n\r\nGET / HTTP/1.1"):
        with pytest.raises(ValueError, match="line break"):
            await post(client, upstream, b"", evil=value)
    assert upstream.requests == []


async def test_a_slow_reader_slows_the_server(upstream: FakeUpstream, client: Http1Client) -> None:
    part = b"x" * 65536
    upstream.scripts = [stream(*[part] * 400)]
    response = await post(client, upstream)
    await asyncio.sleep(0.2)
    assert not upstream.requests[0].finished.is_set(), "26 MB do not fit into what is buffered"
    first = await anext(response)
    assert len(first) < HIGH_WATER + 2**20
    async with asyncio.timeout(300):
        assert len(first) + len(await whole(response)) == 400 * len(part)


async def test_many_at_once(upstream: FakeUpstream, client: Http1Client) -> None:
    upstream.scripts = [reply(b"y" * 1000)]

    async def some() -> None:
        for _ in range(20):
            assert await whole(await post(client, upstream)) == b"y" * 1000

    await asyncio.gather(*(some() for _ in range(20)))
    assert upstream.connections <= 20


@given(sizes=st.lists(st.integers(1, 40), max_size=60))
async def test_however_the_bytes_are_cut_up(sizes: list[int]) -> None:
    async with FakeUpstream() as upstream:
        client = Http1Client(authorities=ssl.create_default_context, rest=0)
        upstream.scripts = [
            tuple(
                cut_at(
                    b"".join(step for step in stream(*answer_events("a", "b")) if isinstance(step, bytes)),
                    sizes,
                )
            )
        ]
        assert await whole(await post(client, upstream)) == b"".join(answer_events("a", "b"))
        assert await whole(await post(client, upstream)) == b"".join(answer_events("a", "b"))
        assert upstream.connections == 1
        await client.aclose()


async def test_closing_closes(upstream: FakeUpstream) -> None:
    client = Http1Client(authorities=ssl.create_default_context)
    await whole(await post(client, upstream))
    response = await post(client, upstream)
    await client.aclose()
    async with asyncio.timeout(300):
        while upstream.open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await response.aclose()


async def test_over_tls(tls_upstream: FakeUpstream, certificate: Path) -> None:
    client = Http1Client(authorities=lambda: ssl.create_default_context(cafile=certificate))
    for _ in range(2):
        endpoint = Endpoint("POST", f"https://127.0.0.1:{tls_upstream.port}/")
        assert (await client.send(endpoint, {}, b"{}", connect=2.0)).status == 200
    with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
        await client.send(Endpoint("GET", f"https://localhost:{tls_upstream.port}/"), {}, connect=2.0)
    await client.aclose()


async def test_a_server_that_does_not_take_the_call(client: Http1Client) -> None:
    # A listening socket whose backlog is full: connecting hangs.
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        blockers = [socket.socket() for _ in range(4)]
        for blocker in blockers:
            blocker.setblocking(False)
            blocker.connect_ex(("127.0.0.1", port))
        async with within(1.0):
            with pytest.raises(httpx.ConnectTimeout):
                await client.send(Endpoint("GET", f"http://127.0.0.1:{port}/"), {}, connect=0.1)
        for blocker in blockers:
            blocker.close()


# The client that backends use


async def test_a_proxy_in_the_environment_is_used(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{upstream.port}")
    client = Client()
    answer = await client.send(
        Endpoint("POST", "http://models.example/v1/chat"), {"x-a": "1"}, b"{}", connect=1.0
    )
    assert answer.status == 200
    assert [part async for part in answer]
    assert upstream.requests[0].path == "http://models.example/v1/chat"
    await client.aclose()


async def test_any_httpx_transport_takes_its_place() -> None:
    async def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(201, content=request.headers["x-a"].encode() + await request.aread())

    client = Client(transport=httpx.MockTransport(respond))
    answer = await client.send(Endpoint("POST", "http://mock/"), {"x-a": "1"}, b"{}")
    assert (answer.status, b"".join([part async for part in answer])) == (201, b"1{}")
    await answer.aclose()
    await client.aclose()


def test_endpoints() -> None:
    plain = Endpoint("GET", "http://host/a b?c=d")
    assert (plain.origin, plain.line) == (Origin("host", 80, False), "GET /a%20b?c=d HTTP/1.1")
    assert plain.origin.host_header == "host"
    v6 = Endpoint("GET", "https://[::1]:8443/")
    assert (v6.origin, v6.origin.host_header) == (Origin("::1", 8443, True), "[::1]:8443")
