"""Pages in browsers: what the policy lets them do, over sockets and in a real browser."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.serving import KEY, Gateway, a_policy, chat, key, serving

pytestmark = pytest.mark.anyio

PAGE = "https://chat.example.com"
SLOW_KEY = "tg-slow-1"


@asynccontextmanager
async def gateway_with(folder: Path, **cors: Any) -> AsyncIterator[Gateway]:
    policy = a_policy("http://127.0.0.1:1/v1", **({"cors": cors} if cors else {}))
    policy["keys"].append(key(SLOW_KEY, "slow-1", quotas={"requests_per_minute": 1}))
    async with serving(folder / "policies", policy) as running:
        yield running


async def preflight(gateway: Gateway, origin: str, path: str = "/v1/models", **more: str) -> httpx.Response:
    asked = {
        "origin": origin,
        "access-control-request-method": "POST",
        **{f"access-control-request-{name.replace('_', '-')}": value for name, value in more.items()},
    }
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as stranger:
        return await stranger.options(path, headers=asked)


def granted(response: httpx.Response) -> dict[str, str]:
    start = "access-control-"
    return {
        name.removeprefix(start): value for name, value in response.headers.items() if name.startswith(start)
    }


async def test_off_by_default(tmp_path: Path) -> None:
    async with gateway_with(tmp_path) as gateway:
        refused = await preflight(gateway, PAGE)
        answer = await gateway.http.get("/v1/models", headers={"origin": PAGE})
    assert (refused.status_code, answer.status_code) == (401, 200)
    assert not granted(refused)
    assert not granted(answer)
    assert "vary" not in answer.headers


async def test_a_preflight_needs_no_key(tmp_path: Path) -> None:
    sdks = "authorization,content-type,x-stainless-arch,x-stainless-lang"
    async with gateway_with(tmp_path, allow_origins=[PAGE], max_age="1h") as gateway:
        for path in ("/v1/models", "/v1/chat/completions", "/no/such/path"):
            answer = await preflight(gateway, PAGE, path, headers=sdks)
            assert answer.status_code == 204
            assert granted(answer) == {
                "allow-origin": PAGE,
                "allow-methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
                "allow-headers": sdks,
                "max-age": "3600",
            }
            assert "Origin" in answer.headers["vary"]
        metrics = await gateway.metrics()
    assert metrics['tollgate_http_requests_total{route="preflight",status="204"}'] == 3


@pytest.mark.parametrize(
    ("allowed", "origin", "may"),
    [
        ("https://*.example.com", "https://a.b-c.example.com", True),
        ("https://*.example.com", "https://example.com", False),
        ("https://*.example.com", "https://evil-example.com", False),
        ("https://*.example.com", "https://a.example.com.evil.org", False),
        ("https://*.example.com", "http://a.example.com", False),
        ("https://*.example.com", "https://a.example.com:8443", False),
        ("http://localhost:*", "http://localhost:5173", True),
        ("http://localhost:*", "http://localhost", True),
        ("http://localhost:*", "http://localhost.evil.org:80", False),
        ("http://localhost:*", "http://localhost:80.evil.org", False),
        ("https://a.example.com", "https://aXexample.com", False),
        ("https://a.example.com", "null", False),
        ("null", "null", True),
        ("*", "https://anything.at.all", True),
    ],
)
async def test_which_origins_are_allowed(tmp_path: Path, allowed: str, origin: str, may: bool) -> None:
    async with gateway_with(tmp_path, allow_origins=["https://other.example", allowed]) as gateway:
        asked = await preflight(gateway, origin)
        answer = await gateway.http.get("/v1/models", headers={"origin": origin})
    assert asked.status_code == (204 if may else 403)
    expected = (allowed if allowed == "*" else origin) if may else None
    assert granted(asked).get("allow-origin") == granted(answer).get("allow-origin") == expected
    assert answer.status_code == 200, "who may read an answer is the browser's affair"
    assert ("vary" in answer.headers) == (allowed != "*")
    if not may:
        assert "cors.allow_origins" in asked.json()["error"]["message"]


async def test_refusals_and_faults_can_be_read_and_all_their_headers(tmp_path: Path) -> None:
    async with gateway_with(tmp_path, allow_origins=[PAGE]) as gateway:
        cases = [
            (200, "/v1/chat/completions", KEY, chat()),
            (200, "/v1/chat/completions", KEY, chat(stream=True)),
            (400, "/v1/chat/completions", KEY, {}),
            (401, "/v1/chat/completions", "tg-wrong", chat()),
            (404, "/v1/nothing", KEY, {}),
            (404, "/v1/messages", KEY, {**chat("no"), "max_tokens": 1}),
            (405, "/v1/models", KEY, {}),
            (200, "/v1/chat/completions", SLOW_KEY, chat()),
            (429, "/v1/chat/completions", SLOW_KEY, chat()),
            (503, "/v1/chat/completions", KEY, chat(content="fail")),
        ]
        for status, path, token, body in cases:
            answer = await gateway.http.post(
                path, json=body, headers={"origin": PAGE, "authorization": f"Bearer {token}"}
            )
            assert answer.status_code == status
            assert granted(answer)["allow-origin"] == PAGE
            exposed = set(granted(answer)["expose-headers"].split(", "))
            own = {name for name in answer.headers if name.startswith(("x-", "retry-", "request-id"))}
            assert "x-request-id" in own
            assert own <= exposed
            if status == 429:
                assert {"retry-after", "x-ratelimit-remaining-requests"} <= exposed


async def test_without_an_origin_only_caches_are_told(tmp_path: Path) -> None:
    async with gateway_with(tmp_path, allow_origins=[PAGE]) as gateway:
        answer = await gateway.http.get("/v1/models")
        plain = await gateway.http.options("/v1/models", headers={"origin": PAGE})
    assert not granted(answer)
    assert answer.headers["vary"] == "Origin"
    assert plain.status_code == 405, "no preflight: it asks for nothing"


async def test_what_else_a_policy_may_grant(tmp_path: Path) -> None:
    more = {"allow_headers": ["Authorization", "x-mine"], "allow_credentials": True}
    async with gateway_with(tmp_path, allow_origins=[PAGE], allow_private_network=True, **more) as gateway:
        asked = await preflight(gateway, PAGE, headers="x-other", private_network="true")
        answer = await gateway.http.get("/v1/models", headers={"origin": PAGE})
        unasked = await preflight(gateway, PAGE)
    assert granted(asked)["allow-headers"] == "authorization, x-mine"
    assert granted(asked)["allow-private-network"] == "true"
    assert "allow-private-network" not in granted(unasked)
    assert granted(asked)["allow-credentials"] == granted(answer)["allow-credentials"] == "true"


async def test_private_networks_are_closed_by_default(tmp_path: Path) -> None:
    async with gateway_with(tmp_path, allow_origins=[PAGE]) as gateway:
        asked = await preflight(gateway, PAGE, private_network="true")
    assert "allow-private-network" not in granted(asked)


async def test_a_change_of_policy_counts_at_once(tmp_path: Path, quick_reload: None) -> None:
    async with gateway_with(tmp_path) as gateway:
        assert (await preflight(gateway, PAGE)).status_code == 401
        gateway.write(a_policy("http://127.0.0.1:1/v1", cors={"allow_origins": [PAGE]}))
        await gateway.generation(2)
        assert (await preflight(gateway, PAGE)).status_code == 204
        gateway.write(a_policy("http://127.0.0.1:1/v1"))
        await gateway.generation(3)
        assert (await preflight(gateway, PAGE)).status_code == 401


# In a browser

SCRIPT = """
<script type="module">
const ask = (key, body) => fetch("GATEWAY/v1/chat/completions", {
  method: "POST",
  headers: {authorization: `Bearer ${key}`, "content-type": "application/json", "x-stainless-lang": "js"},
  body: JSON.stringify({messages: [{role: "user", content: "Hi"}], ...body}),
});
const told = {};
try {
  const whole = await ask("KEY", {model: "fake"});
  told.whole = (await whole.json()).choices[0].message.content;
  told.id = whole.headers.get("x-request-id");
  const stream = await ask("KEY", {model: "slow", stream: true});
  told.parts = 0;
  told.streamed = "";
  for await (const part of stream.body.pipeThrough(new TextDecoderStream())) {
    told.parts += 1;
    told.streamed += part;
  }
  const wrong = await ask("tg-wrong", {model: "fake"});
  told.wrong = [wrong.status, (await wrong.json()).error.code];
} catch (error) {
  told.error = String(error);
}
await fetch("/told", {method: "POST", body: JSON.stringify(told)});
</script>
"""


@asynccontextmanager
async def page(html: str) -> AsyncIterator[tuple[str, asyncio.Future[Any]]]:
    """A site with one page, and what the page tells in the end."""
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):  # browsers connect in advance
            writer.close()
            return
        if head.startswith(b"POST /told"):
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            told.set_result(orjson.loads(await reader.readexactly(length)))
        body = html.encode()
        start = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        )
        writer.write(start % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", told


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium on this machine")
async def test_a_page_in_chromium(tmp_path: Path) -> None:
    async with (
        gateway_with(tmp_path, allow_origins=["http://127.0.0.1:*"]) as gateway,
        page(SCRIPT.replace("GATEWAY", gateway.url).replace("KEY", KEY)) as (url, told),
    ):
        browser = await asyncio.create_subprocess_exec(
            "chromium",
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--disable-background-networking", "--disable-sync", "--no-first-run", "--no-proxy-server"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--remote-debugging-port=0", f"{url}/"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            heard = await asyncio.wait_for(told, 300)
        finally:
            with suppress(ProcessLookupError):
                browser.terminate()
            await browser.wait()
    assert "error" not in heard, heard["error"]
    assert heard["whole"] == "one two three"
    assert heard["id"].startswith("req_")
    assert heard["streamed"].endswith("data: [DONE]\n\n")
    assert heard["parts"] > 1, "it came piece by piece"
    assert heard["wrong"] == [401, "invalid_api_key"]
