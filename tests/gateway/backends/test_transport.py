"""The default transport: proxies, certificates, errors, and what it leaves to its caller."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gateway.backends.transport import OutgoingTransport
from gateway.backends.upstream_connection import STILL_THERE
from tests.fakes import Action, FakeUpstream, Script, answer_events, completion, head, reply, stream, within
from tests.forward_proxy import Proxy

pytestmark = pytest.mark.anyio


@pytest.fixture
async def transport() -> AsyncIterator[OutgoingTransport]:
    transport = OutgoingTransport()
    yield transport
    await transport.aclose()


async def post(transport: httpx.AsyncBaseTransport, url: str, **timeout: float) -> httpx.Response:
    request = httpx.Request(
        "POST", url, content=b"{}", headers={"x-a": "1"}, extensions={"timeout": timeout} if timeout else {}
    )
    response = await transport.handle_async_request(request)
    try:
        await response.aread()
    finally:
        await response.aclose()
    return response


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with Proxy().running() as proxy:
        yield proxy


async def test_status_headers_and_body_come_through(
    upstream: FakeUpstream, transport: OutgoingTransport
) -> None:
    upstream.scripts = [reply("teapot", status=418, kind="text/plain", headers={"X-Two": "a", "x-two": "b"})]
    response = await post(transport, upstream.base_url + "/x%2Fy?q=a%20b&r=%C3%A9")
    assert (response.status_code, response.text) == (418, "teapot")
    assert response.headers.get_list("x-two") == ["a", "b"]
    assert upstream.requests[0].path == "/v1/x%2Fy?q=a%20b&r=%C3%A9"
    assert upstream.requests[0].headers == {
        "host": f"127.0.0.1:{upstream.port}",
        "x-a": "1",
        "content-length": "2",
        "connection": "close",
    }


async def test_compressed_bodies_are_handed_over_as_they_are(
    upstream: FakeUpstream, transport: OutgoingTransport
) -> None:
    upstream.scripts = [reply(b"not really gzip", headers={"content-encoding": "gzip"})]
    request = httpx.Request("POST", upstream.base_url)
    response = await transport.handle_async_request(request)
    assert isinstance(response.stream, httpx.AsyncByteStream)
    assert b"".join([part async for part in response.stream]) == b"not really gzip"
    await response.aclose()


async def test_cookies_are_not_kept(upstream: FakeUpstream, transport: OutgoingTransport) -> None:
    upstream.scripts = [reply("{}", headers={"set-cookie": "tenant=acme; Path=/"})]
    for _ in range(2):
        await post(transport, upstream.base_url)
    assert "cookie" not in upstream.requests[1].headers


async def test_redirects_are_left_to_the_caller(upstream: FakeUpstream, transport: OutgoingTransport) -> None:
    upstream.scripts = [reply("", status=307, headers={"location": "/elsewhere"})]
    assert (await post(transport, upstream.base_url)).status_code == 307
    assert len(upstream.requests) == 1


ERRORS: dict[str, tuple[Script, type[httpx.TransportError]]] = {
    "closed": ((Action.CLOSE,), httpx.RemoteProtocolError),
    "reset": ((Action.ABORT,), httpx.RemoteProtocolError),
    "garbage": ((b"\x00\x01\x02\r\n\r\n", Action.CLOSE), httpx.RemoteProtocolError),
    "cut-body": ((head(200, {"content-length": "9"}) + b"x", Action.CLOSE), httpx.RemoteProtocolError),
    "cut-chunks": ((*stream(*answer_events("a"), whole=False), Action.CLOSE), httpx.RemoteProtocolError),
    "bad-chunks": (
        (head(200, {"transfer-encoding": "chunked"}) + b"zz\r\n", Action.CLOSE),
        httpx.TransportError,
    ),
    "silence": ((Action.HANG,), httpx.ReadTimeout),
    "silent-body": ((head(200, {"content-length": "9"}), Action.HANG), httpx.ReadTimeout),
}


@pytest.mark.parametrize("case", ERRORS)
async def test_errors_are_httpxs(upstream: FakeUpstream, transport: OutgoingTransport, case: str) -> None:
    script, kind = ERRORS[case]
    upstream.scripts = [script]
    with pytest.raises(kind) as caught:
        await post(transport, upstream.base_url, connect=1.0, read=0.1)
    assert caught.value.request.method == "POST"
    assert str(caught.value)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://127.0.0.1:1/", httpx.ConnectError),
        ("http://tollgate.invalid/", httpx.ConnectError),
        ("ftp://127.0.0.1/", httpx.UnsupportedProtocol),
        ("/no-host", httpx.UnsupportedProtocol),
        ("http://" + "a" * 64 + ".example/", httpx.ConnectError),
        ("http://127.0.0.1:99999/", httpx.UnsupportedProtocol),
    ],
)
async def test_urls_that_lead_nowhere(
    transport: OutgoingTransport, url: str, kind: type[httpx.TransportError]
) -> None:
    with pytest.raises(kind):
        await post(transport, url, connect=2.0)


async def test_a_transport_can_be_used_again_after_closing(
    upstream: FakeUpstream, transport: OutgoingTransport
) -> None:
    for _ in range(2):
        assert (await post(transport, upstream.base_url)).status_code == 200
        await transport.aclose()
    assert upstream.connections == 2


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_whoever_is_cancelled_leaves_no_connection(
    upstream: FakeUpstream, tls_upstream: FakeUpstream, certificate: Path, tls: bool
) -> None:
    """At whatever step: callers limit the time of their requests by cancelling them."""
    server = tls_upstream if tls else upstream
    transport = OutgoingTransport(verify=ssl.create_default_context(cafile=certificate))
    await post(transport, server.base_url)
    steps = 0
    while True:
        asking = asyncio.create_task(post(transport, server.base_url))
        for _ in range(steps):
            await asyncio.sleep(0)
        if asking.done():
            break
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        steps += 1
    assert steps > 10
    for _ in range(500):
        if not server.open:
            break
        await asyncio.sleep(0.01)
    assert not server.open


async def test_a_surplus_answer_is_given_to_nobody(
    upstream: FakeUpstream, transport: OutgoingTransport
) -> None:
    surplus = head(200, {"content-length": "3"}) + b"bad"
    upstream.scripts = [(*reply(b"one"), surplus), (*reply(b"two"), 0.01, surplus), reply(b"three")]
    for expected in (b"one", b"two", b"three"):
        assert (await post(transport, upstream.base_url)).content == expected
        await asyncio.sleep(0.02)


# Proxies


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_plain_requests_go_through_the_proxy(
    upstream: FakeUpstream,
    transport: OutgoingTransport,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    monkeypatch.setenv(variable, proxy.url)
    assert (await post(transport, upstream.base_url + "/x")).status_code == 200
    assert proxy.asked == [f"POST {upstream.base_url}/x HTTP/1.1"]
    assert upstream.requests[0].path == "/v1/x"


async def test_a_proxy_without_a_scheme_speaks_http(
    upstream: FakeUpstream, transport: OutgoingTransport, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{proxy.port}")
    assert (await post(transport, upstream.base_url)).status_code == 200
    assert len(proxy.asked) == 1


async def test_tls_goes_through_a_tunnel(
    tls_upstream: FakeUpstream,
    transport: OutgoingTransport,
    proxy: Proxy,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//user:pass@"))
    assert (await post(transport, tls_upstream.base_url)).json() == completion()
    assert proxy.asked == [f"CONNECT 127.0.0.1:{tls_upstream.port} HTTP/1.1"]
    assert "proxy-authorization: basic dxnlcjpwyxnz" in proxy.headers[0]
    assert "proxy-authorization" not in tls_upstream.requests[0].headers


@pytest.mark.parametrize("exception", ["127.0.0.1", "*", "127.0.0.1:{port}"])
async def test_exceptions_from_the_proxy(
    upstream: FakeUpstream,
    transport: OutgoingTransport,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    exception: str,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", exception.format(port=upstream.port))
    await post(transport, upstream.base_url)
    assert proxy.asked == []
    assert len(upstream.requests) == 1


async def test_an_exception_for_another_host_changes_nothing(
    upstream: FakeUpstream, transport: OutgoingTransport, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", "example.org,127.0.0.1:1")
    await post(transport, upstream.base_url)
    assert len(proxy.asked) == 1


async def test_a_proxy_that_refuses(
    tls_upstream: FakeUpstream, transport: OutgoingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Proxy(refuse=407).running() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with pytest.raises(httpx.ProxyError, match="407"):
            await post(transport, tls_upstream.base_url)


async def test_a_proxy_that_is_not_there(
    upstream: FakeUpstream, transport: OutgoingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with pytest.raises(httpx.ProxyError):
        await post(transport, upstream.base_url)
    assert upstream.requests == []


async def test_a_proxy_of_another_kind(
    upstream: FakeUpstream, transport: OutgoingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(httpx.UnsupportedProtocol, match="proxy"):
        await post(transport, upstream.base_url)


@pytest.mark.parametrize("proxied", [False, True])
async def test_a_machine_that_is_gone_is_found_out(
    upstream: FakeUpstream,
    transport: OutgoingTransport,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    proxied: bool,
) -> None:
    if proxied:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
    upstream.scripts = [stream(*answer_events("Hi"), Action.HANG)]
    response = await transport.handle_async_request(httpx.Request("POST", upstream.base_url, content=b"{}"))
    ours = response.extensions["network_stream"].get_extra_info("socket")
    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == STILL_THERE[1]
    await response.aclose()


# Certificates


async def test_an_authority_of_ones_own(
    tls_upstream: FakeUpstream,
    transport: OutgoingTransport,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert (await post(transport, tls_upstream.base_url)).status_code == 200


async def test_an_unknown_authority_is_not_trusted(
    tls_upstream: FakeUpstream, transport: OutgoingTransport
) -> None:
    with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
        await post(transport, tls_upstream.base_url)
    assert tls_upstream.requests == []


async def test_authorities_can_be_given_in_place_of_the_systems(
    tls_upstream: FakeUpstream, certificate: Path
) -> None:
    transport = OutgoingTransport(verify=ssl.create_default_context(cafile=certificate))
    for _ in range(2):
        assert (await post(transport, tls_upstream.base_url)).status_code == 200
    await transport.aclose()


async def test_a_certificate_for_another_name_is_not_trusted(
    tls_upstream: FakeUpstream,
    transport: OutgoingTransport,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with pytest.raises(httpx.ConnectError, match=r"(?i)certificate"):
        await post(transport, tls_upstream.base_url.replace("127.0.0.1", "localhost"))


async def test_streams_over_tls_arrive_as_they_are_sent(
    tls_upstream: FakeUpstream,
    transport: OutgoingTransport,
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls_upstream.scripts = [stream(b"one", 0.3, b"two")]
    response = await transport.handle_async_request(httpx.Request("POST", tls_upstream.base_url))
    assert isinstance(response.stream, httpx.AsyncByteStream)
    parts = aiter(response.stream)
    async with within(0.25):
        assert await anext(parts) == b"one"
    assert await anext(parts) == b"two"
    await response.aclose()
