"""The way to models' servers through a proxy."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from gateway.backends import http1
from gateway.backends.client import Client
from gateway.backends.endpoint import Endpoint
from gateway.backends.proxy import MAX_HEAD, Proxy
from tests.fakes import FakeUpstream, head, reply, stream
from tests.forward_proxy import Proxy as ForwardProxy

pytestmark = pytest.mark.anyio

RESTED = 3 * http1.REST


@pytest.fixture
async def proxy() -> AsyncIterator[ForwardProxy]:
    async with ForwardProxy().running() as proxy:
        yield proxy


@pytest.fixture
async def client(certificate: Path) -> AsyncIterator[Client]:
    client = Client(verify=ssl.create_default_context(cafile=certificate))
    yield client
    await client.aclose()


async def post(client: Client, url: str) -> bytes:
    async with asyncio.timeout(300):
        answer = await client.send(Endpoint("POST", url), {"x-a": "1"}, b"{}", connect=60.0)
        body = b"".join([part async for part in answer])
        await answer.aclose()
    return body


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_requests_without_tls_are_the_proxys_to_send_on(
    upstream: FakeUpstream,
    client: Client,
    proxy: ForwardProxy,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    monkeypatch.setenv(variable, proxy.url.replace("//", "//us%40er:pass@"))
    upstream.scripts = [reply("hello")]
    assert await post(client, upstream.base_url + "/x?y=1") == b"hello"
    assert proxy.asked == [f"POST {upstream.base_url}/x?y=1 HTTP/1.1"]
    assert "proxy-authorization: basic dxnazxi6cgfzcw==" in proxy.headers[0]
    assert f"host: 127.0.0.1:{upstream.port}\r\n" in proxy.headers[0]


async def test_a_tunnel_is_kept(
    tls_upstream: FakeUpstream, client: Client, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//user:pass@"))
    for _ in range(3):
        tls_upstream.scripts = [stream(b"one", 0.01, b"two")]
        assert await post(client, tls_upstream.base_url) == b"onetwo"
        await asyncio.sleep(RESTED)
    assert proxy.asked == [f"CONNECT 127.0.0.1:{tls_upstream.port} HTTP/1.1"]
    assert "proxy-authorization: basic dxnlcjpwyxnz" in proxy.headers[0]
    assert "proxy-authorization" not in tls_upstream.requests[0].headers
    assert tls_upstream.connections == 1


async def test_a_surplus_answer_through_a_tunnel_goes_to_nobody(
    tls_upstream: FakeUpstream, client: Client, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    surplus = head(200, {"content-length": "3"}) + b"bad"
    tls_upstream.scripts = [(*reply(b"one"), surplus), reply(b"two")]
    for expected in (b"one", b"two", b"two"):
        assert await post(client, tls_upstream.base_url) == expected
        await asyncio.sleep(RESTED)
    assert tls_upstream.connections == 3, "a server that has done it once is not trusted again"


async def test_exceptions_from_the_proxy(
    upstream: FakeUpstream, client: Client, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    await post(client, upstream.base_url)
    assert proxy.asked == []
    assert len(upstream.requests) == 1


async def test_a_proxy_that_refuses(
    tls_upstream: FakeUpstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ForwardProxy(refuse=407).running() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(httpx.ProxyError, match="407"):
            await post(client, tls_upstream.base_url)


@pytest.mark.parametrize(
    "says",
    [
        b"",
        b"HTTP/1.1 200 Established\r\n",
        b"HTTP/1.1 200 Established\r\n\r\nand more",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 502 No\r\nx: " + b"y" * MAX_HEAD,
    ],
    ids=["nothing", "half", "more", "no HTTP", "without end"],
)
async def test_a_proxy_that_opens_no_tunnel(
    client: Client, monkeypatch: pytest.MonkeyPatch, says: bytes
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(says)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        with pytest.raises(httpx.ProxyError, match="opened no tunnel"):
            await post(client, "https://models.example/v1")


async def test_a_proxy_that_hangs(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        with pytest.raises(httpx.ConnectTimeout):
            await client.send(Endpoint("GET", "https://models.example/v1"), {}, connect=0.05)


async def test_a_proxy_that_is_not_there(
    upstream: FakeUpstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    for url in (upstream.base_url, "https://models.example/v1"):
        with pytest.raises(httpx.ProxyError):
            await post(client, url)
    assert upstream.requests == []


async def test_a_proxy_of_another_kind(
    upstream: FakeUpstream, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(httpx.UnsupportedProtocol, match="proxy"):
        await post(client, upstream.base_url)


@pytest.mark.parametrize("broken", [lambda url: url.replace("127.0.0.1", "localhost")])
async def test_a_certificate_for_another_name_is_not_trusted(
    tls_upstream: FakeUpstream,
    client: Client,
    proxy: ForwardProxy,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[str], str],
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
        await post(client, broken(tls_upstream.base_url))
    assert tls_upstream.requests == []


def test_proxies() -> None:
    assert Proxy.at("https://proxy") == Proxy("proxy", 443, True, "")
    assert Proxy.at("http://[::1]:3128") == Proxy("::1", 3128, False, "")
