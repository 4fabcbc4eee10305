"""HTTP/2 by the servers in front whose configurations are in ``deploy/proxy``: nothing is held back or lost there."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
import yaml
from h2.connection import H2Connection
from h2.events import DataReceived

from tests.conftest import installed
from tests.fakes import DONE, FakeUpstream, sse, stream
from tests.proxies import DEPLOY, caddy, haproxy, nginx
from tests.serving import KEY, Gateway, a_policy, chat, serving

pytestmark = pytest.mark.anyio

PROXIES = {"nginx": nginx, "caddy": caddy, "haproxy": haproxy}


@pytest.fixture
async def gateway(upstream: FakeUpstream, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with serving(tmp_path / "policies", a_policy(upstream.base_url)) as running:
        yield running


@pytest.fixture(params=PROXIES)
async def client(
    request: pytest.FixtureRequest, gateway: Gateway, certificate: Path, tmp_path: Path
) -> AsyncIterator[httpx.AsyncClient]:
    """Of the gateway behind it."""
    program, folder = installed(request.param, request.param), tmp_path / request.param
    folder.mkdir()
    async with (
        PROXIES[request.param](program, folder, gateway.port, certificate) as url,
        httpx.AsyncClient(
            base_url=url,
            http1=False,
            http2=True,
            verify=ssl.create_default_context(cafile=str(certificate)),
            headers={"authorization": f"Bearer {KEY}"},
            timeout=300,
        ) as one,
    ):
        yield one


def event(text: str) -> bytes:
    return sse({"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


async def test_an_answer_and_an_error_come_by_http2(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=chat())
    assert (answer.http_version, answer.status_code) == ("HTTP/2", 200)
    assert answer.json()["choices"][0]["message"]["content"] == "one two three"
    wrong = await client.post("/v1/chat/completions", json={"model": "fake"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "messages")


async def test_a_stream_is_not_held_back(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    """The model's server says its second word only once the client has its first."""
    read = asyncio.Event()
    upstream.scripts = [stream(event("first"), read, event("second"), DONE)]
    async with client.stream("POST", "/v1/chat/completions", json=chat("up", stream=True)) as answer:
        assert answer.http_version == "HTTP/2"
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()
        while "first" not in await anext(lines):
            pass
        read.set()
        rest = [line async for line in lines if line]
    assert "second" in "".join(rest) and rest[-1] == "data: [DONE]"


async def test_many_streams_share_a_connection(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    everybody = asyncio.Event()
    upstream.scripts = [stream(event("first"), everybody, DONE)]

    async def ask() -> None:
        async with client.stream("POST", "/v1/chat/completions", json=chat("up", stream=True)) as answer:
            assert [line async for line in answer.aiter_lines() if line][-1] == "data: [DONE]"

    asked = [asyncio.create_task(ask()) for _ in range(20)]
    await upstream.arrived(20)
    everybody.set()
    await asyncio.gather(*asked)


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_who_leaves_is_seen_to_have_left(
    client: httpx.AsyncClient, upstream: FakeUpstream, certificate: Path, how: str
) -> None:
    """As browsers, Go and Node do: the stream is reset, and the connection stays. httpx says nothing of it."""
    upstream.scripts = [stream(event("first"), asyncio.Event(), DONE)]
    context = ssl.create_default_context(cafile=str(certificate))
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port, ssl=context)
    http2 = H2Connection()
    http2.initiate_connection()
    body = orjson.dumps(chat("up", stream=True))
    named = {":method": "POST", ":path": "/v1/chat/completions", ":scheme": "https"}
    told = {":authority": client.base_url.netloc.decode(), "authorization": f"Bearer {KEY}"}
    http2.send_headers(1, [*{**named, **told, "content-length": str(len(body))}.items()])
    http2.send_data(1, body, end_stream=True)
    writer.write(http2.data_to_send())
    async with asyncio.timeout(300):
        while not any(isinstance(one, DataReceived) for one in http2.receive_data(await reader.read(65536))):
            writer.write(http2.data_to_send())
        if how == "reset":
            http2.reset_stream(1)
            writer.write(http2.data_to_send())
        else:
            writer.close()
        asked = await upstream.arrived()
        await asked.left.wait()
    writer.close()


async def test_files_pass_as_they_come(client: httpx.AsyncClient) -> None:
    content = b"line\n" * 1_000_000
    answer = await client.post(
        "/v1/files", files={"file": ("x.jsonl", content)}, data={"purpose": "user_data"}
    )
    assert answer.json()["bytes"] == len(content)
    assert (await client.get(f"/v1/files/{answer.json()['id']}/content")).content == content


async def test_openais_client_streams(client: httpx.AsyncClient, certificate: Path) -> None:
    http = openai.DefaultAsyncHttpxClient(
        http2=True, verify=ssl.create_default_context(cafile=str(certificate))
    )
    async with openai.AsyncOpenAI(
        base_url=f"{client.base_url}/v1", api_key=KEY, http_client=http, max_retries=0
    ) as sdk:
        raw = await sdk.chat.completions.with_raw_response.create(
            model="fake", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        assert raw.http_response.http_version == "HTTP/2"
        said = [one.choices[0].delta.content or "" async for one in raw.parse() if one.choices]
        assert "".join(said) == "one two three"


async def test_operators_pages_stay_inside(client: httpx.AsyncClient) -> None:
    for path in ("/metrics", "/admin", "/admin/", "/admin/api/usage", "/%6Detrics", "/%61dmin/api/usage"):
        answer = await client.get(path)
        assert answer.status_code == 404 and "error" not in answer.text, path


def test_envoys_streams_have_no_end() -> None:
    """Envoy is no package of Debian's: what its configuration says is all that is looked at here."""
    document: Any = yaml.safe_load((DEPLOY / "envoy.yaml").read_text())
    (chain,) = document["static_resources"]["listeners"][0]["filter_chains"]
    assert "h2" in chain["transport_socket"]["typed_config"]["common_tls_context"]["alpn_protocols"]
    (hosts,) = chain["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]
    assert hosts["routes"][-1]["route"] == {"cluster": "tollgate", "timeout": "0s"}
