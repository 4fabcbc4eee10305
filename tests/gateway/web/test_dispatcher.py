"""Who gets in, and what those are told who do not: over real sockets, in OpenAI's error shape."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import openai
import orjson
import pytest

from tests.fakes import FakeUpstream
from tests.serving import (
    EXPIRED_KEY,
    KEY,
    NARROW_KEY,
    OPERATOR,
    OTHER_KEY,
    Gateway,
    RawConnection,
    a_policy,
    chat,
    request,
    serving,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream() as server:
        yield server


@pytest.fixture(scope="module")
async def gateway(server: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """One for all tests of this file: they change nothing in it."""
    folder = tmp_path_factory.mktemp("policies")
    async with serving(folder, a_policy(server.base_url), max_body_bytes=100_000) as running:
        yield running


REQUEST_ID = re.compile(r"req_[0-9a-f]{24}")


def check_error(status: int, headers: Any, body: Any) -> dict[str, Any]:
    """``body`` is OpenAI's error, whole and no more; returns what is in it."""
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert error["message"]
    assert headers["content-type"] == "application/json"
    assert REQUEST_ID.fullmatch(headers["x-request-id"])
    assert ("retry-after" in headers) == (status in (429, 503))
    return error


PATHS = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/fake"),
    ("GET", "/v1/requests/req_1"),
    ("GET", "/no/such/path"),
    ("GET", "/healthz/x"),
    ("GET", "/v1/healthz"),
    ("GET", "/healthz%3f"),
    ("GET", "/HEALTHZ"),
    ("GET", "//v1//models/"),
    ("GET", "/openai/healthz/../models"),
    ("GET", "/metrics/../v1/models"),
    ("DELETE", "/v1/models"),
    ("OPTIONS", "/v1/models"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_no_path_opens_without_a_key(gateway: Gateway, method: str, path: str) -> None:
    async with RawConnection(gateway.port) as wire:
        wire.send(f"{method} {path} HTTP/1.1\r\nhost: gateway\r\ncontent-length: 0\r\n\r\n".encode())
        answer = await wire.answer()
    assert answer.status == 401
    assert check_error(401, answer.headers, answer.json())["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("header", "code", "hint"),
    [
        ("", "invalid_api_key", "'Bearer YOUR_KEY'"),
        (KEY, "invalid_api_key", "'Bearer YOUR_KEY'"),
        ("Bearer", "invalid_api_key", "'Bearer YOUR_KEY'"),
        (f"Basic {KEY}", "invalid_api_key", "'Bearer YOUR_KEY'"),
        ("Bearer tg-wrong", "invalid_api_key", "Incorrect API key provided"),
        (f"Bearer {KEY}x", "invalid_api_key", "Incorrect API key provided"),
        (f"Bearer {KEY} {KEY}", "invalid_api_key", "Incorrect API key provided"),
        (f"Bearer {KEY.upper()}", "invalid_api_key", "Incorrect API key provided"),
        (f"Bearer {EXPIRED_KEY}", "expired_api_key", "expired on 2020-01-01"),
    ],
)
async def test_keys_that_do_not_open(gateway: Gateway, header: str, code: str, hint: str) -> None:
    response = await gateway.http.post("/v1/chat/completions", json=chat(), headers={"authorization": header})
    assert response.status_code == 401
    error = check_error(401, response.headers, response.json())
    assert (error["code"], error["type"]) == (code, "invalid_request_error")
    assert hint in error["message"]
    assert KEY not in response.text


@pytest.mark.parametrize("header", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER   {KEY} "])
async def test_keys_that_open(gateway: Gateway, header: str) -> None:
    async with RawConnection(gateway.port) as wire:
        wire.send(f"GET /v1/models HTTP/1.1\r\nhost: g\r\nauthorization: {header}\r\n\r\n".encode())
        assert (await wire.answer()).status == 200


async def test_a_key_with_bytes_beyond_ascii_is_wrong_and_no_more(gateway: Gateway) -> None:
    async with RawConnection(gateway.port) as wire:
        wire.send("GET /v1/models HTTP/1.1\r\nhost: g\r\nauthorization: Bearer schlüssel\r\n\r\n".encode())
        assert (await wire.answer()).status == 401


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/healthz?deep=1", "/healthz/", "//healthz"])
async def test_the_public_paths_need_no_key(gateway: Gateway, path: str) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as stranger:
        response = await stranger.get(gateway.url + path)
    assert response.status_code == 200
    assert REQUEST_ID.fullmatch(response.headers["x-request-id"])


@pytest.mark.parametrize("token", [None, KEY, "metrics-tokem", "metrics-token metrics-token"])
async def test_details_and_figures_are_the_operators(gateway: Gateway, token: str | None) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as stranger:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        page, ready = [await stranger.get(path, headers=headers) for path in ("/metrics", "/readyz")]
        check_error(page.status_code, page.headers, page.json())
        assert (page.status_code, set(ready.json())) == (401, {"status"})
        told = await stranger.get("/readyz", headers=OPERATOR)
        assert set(told.json()["backends"]) == {"scripted", "slow", "up", "down"}
        page = await stranger.get("/metrics", headers=OPERATOR)
        assert page.status_code == 200 and "tollgate_http_requests_total" in page.text


async def test_figures_are_written_once_however_often_they_are_asked_for(
    server: FakeUpstream, tmp_path: Path
) -> None:
    policy = a_policy(server.base_url)
    async with serving(tmp_path, policy, metrics_age=3600.0, metrics_tenants=False) as gateway:
        await gateway.http.post("/v1/chat/completions", json=chat())
        await gateway.http.get("/v1/models", headers={"authorization": "Bearer wrong"})
        pages = {(await gateway.http.get("/metrics", headers=OPERATOR)).text for _ in range(5)}
    (page,) = pages
    assert 'model="fake"' in page and "acme" not in page


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/embedding",
        "/v1/chat/completions/x",
        "/v2/models",
        "/openai/deployments/fake/videos/generations",
        "/v1/chat",
        "/v1/requests/",
        "/docs",
        "/ü%00",
    ],
)
async def test_paths_that_are_not_there(gateway: Gateway, path: str) -> None:
    response = await gateway.http.get(path)
    assert response.status_code == 404
    error = check_error(404, response.headers, response.json())
    assert (error["code"], error["type"]) == ("not_found", "invalid_request_error")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", {"POST"}),
        ("PUT", "/v1/completions", {"POST"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("DELETE", "/v1/models/fake", {"GET", "HEAD"}),
        ("POST", "/healthz", {"GET", "HEAD"}),
        ("OPTIONS", "/v1/chat/completions", {"POST"}),
    ],
)
async def test_methods_that_a_path_does_not_take(
    gateway: Gateway, method: str, path: str, allow: set[str]
) -> None:
    response = await gateway.http.request(method, path)
    assert response.status_code == 405
    assert check_error(405, response.headers, response.json())["code"] == "method_not_allowed"
    assert set(response.headers["allow"].split(", ")) == allow


async def test_head_has_no_body(gateway: Gateway) -> None:
    async with RawConnection(gateway.port) as wire:
        wire.send(request("HEAD", "/v1/models") + request("HEAD", "/nowhere") + request("GET", "/healthz"))
        assert (await wire.head())[0] == 200
        assert (await wire.head())[0] == 404
        assert (await wire.answer()).json() == {"status": "alive"}


BAD_BODIES = [
    (b"", "invalid_json", None),
    (b"{", "invalid_json", None),
    (b"\xff\xfe", "invalid_json", None),
    (b'{"messages": []}', "missing_required_parameter", "model"),
    (orjson.dumps(chat(temperature=9)), "invalid_value", "temperature"),
    (orjson.dumps(chat(new=1)).replace(b":1}", b":" + b"[" * 400 + b"]" * 400 + b"}"), "invalid_json", None),
]


@pytest.mark.parametrize(("body", "code", "param"), BAD_BODIES, ids=lambda value: repr(value)[:30])
async def test_bad_bodies(gateway: Gateway, body: bytes, code: str, param: str | None) -> None:
    async with RawConnection(gateway.port) as wire:
        wire.post(body)
        answer = await wire.answer()
        assert answer.status == 400
        error = check_error(400, answer.headers, answer.json())
        assert (error["code"], error["param"]) == (code, param)
        wire.post(chat())
        assert (await wire.answer()).status == 200, "the connection is as good as before"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_unknown_models_and_forbidden_ones_look_alike(gateway: Gateway, path: str) -> None:
    narrow = {"authorization": f"Bearer {NARROW_KEY}"}
    said = []
    for model in ("up", "nonsense"):
        body = {**chat(model), "prompt": "x"}
        response = await gateway.http.post(path, json=body, headers=narrow)
        assert response.status_code == 404
        error = check_error(404, response.headers, response.json())
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        said.append(error["message"].replace(model, "X"))
    assert said[0] == said[1]


async def test_errors_leave_a_kept_connection_usable(gateway: Gateway) -> None:
    async with RawConnection(gateway.port) as wire:
        for data, status in [
            (request("GET", "/nowhere"), 404),
            (request("PUT", "/v1/models"), 405),
            (request("GET", "/v1/models", token="tg-wrong"), 401),
            (request("POST", "/v1/chat/completions", b"{"), 400),
            (request("POST", "/v1/chat/completions", orjson.dumps(chat(content="fail"))), 503),
            (request("POST", "/v1/chat/completions", b"x" * 100_001), 413),
            # The key is looked at before the body, which is then read past.
            (request("POST", "/v1/chat/completions", b"x" * 90_000, token="tg-wrong"), 401),
            (request("GET", "/v1/models"), 200),
        ]:
            wire.send(data)
            answer = await wire.answer()
            assert answer.status == status
            if status != 200:
                check_error(status, answer.headers, answer.json())


# Bodies


async def test_a_body_of_just_the_limit_is_taken(gateway: Gateway) -> None:
    empty = len(orjson.dumps(chat(content="")))
    for extra, status in ((100_000 - empty, 200), (100_001 - empty, 413)):
        async with RawConnection(gateway.port) as wire:
            wire.post(chat(content="x" * extra))
            assert (await wire.answer()).status == status


async def test_a_declared_excess_is_refused_before_it_is_sent(gateway: Gateway) -> None:
    async with RawConnection(gateway.port) as wire:
        wire.send(
            request("POST", "/v1/chat/completions").replace(b"content-length: 0", b"content-length: 99999999")
        )
        answer = await wire.answer()
    assert answer.status == 413
    error = check_error(413, answer.headers, answer.json())
    assert error["code"] == "request_too_large"
    assert "100000 bytes" in error["message"]


def chunked(*parts: bytes, token: str = KEY) -> bytes:
    head = request("POST", "/v1/chat/completions", token=token)
    head = head.replace(b"content-length: 0", b"transfer-encoding: chunked")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


async def test_chunked_bodies(gateway: Gateway) -> None:
    body = orjson.dumps(chat())
    async with RawConnection(gateway.port) as wire:
        for _ in range(2):
            wire.send(chunked(*(body[i : i + 7] for i in range(0, len(body), 7))))
            answer = await wire.answer()
            assert answer.status == 200
            assert answer.json()["choices"][0]["message"]["content"] == "one two three"


async def test_chunked_bodies_have_the_same_limit(gateway: Gateway) -> None:
    async with RawConnection(gateway.port) as wire:
        wire.send(chunked(*[b"x" * 10_000] * 30))
        answer = await wire.answer()
        assert answer.status == 413
        check_error(413, answer.headers, answer.json())
        wire.send(request("GET", "/v1/models"))
        assert (await wire.answer()).status == 200


async def test_pipelined_requests_are_answered_in_order(gateway: Gateway) -> None:
    async with RawConnection(gateway.port) as wire:
        wire.send(
            request("POST", "/v1/chat/completions", orjson.dumps(chat()))
            + request("GET", "/nowhere")
            + request("POST", "/v1/chat/completions", orjson.dumps(chat(stream=True)))
            + request("GET", "/healthz")
        )
        answers = [await wire.answer() for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 404, 200, 200]
    assert answers[2].body.endswith(b"data: [DONE]\n\n")
    assert len({answer.headers["x-request-id"] for answer in answers}) == 4


async def test_a_clients_own_request_id_is_not_believed(gateway: Gateway, server: FakeUpstream) -> None:
    response = await gateway.http.post(
        "/v1/chat/completions", json=chat("up"), headers={"x-request-id": "mine"}
    )
    assert REQUEST_ID.fullmatch(response.headers["x-request-id"])
    assert server.requests[-1].headers["x-request-id"] == response.headers["x-request-id"]


# What is visible


async def listed(gateway: Gateway, token: str) -> list[str]:
    response = await gateway.http.get("/v1/models", headers={"authorization": f"Bearer {token}"})
    return [model["id"] for model in response.json()["data"]]


async def test_models_are_those_that_the_key_may_use(gateway: Gateway) -> None:
    assert await listed(gateway, KEY) == ["fake", "slow", "up", "down"]
    assert await listed(gateway, NARROW_KEY) == ["fake"]


@pytest.mark.parametrize("path", ["org%2Fname:v1.2", "org/name:v1.2", "an%2Balias"])
async def test_one_model_whose_id_is_no_plain_word(server: FakeUpstream, tmp_path: Path, path: str) -> None:
    policy = a_policy(server.base_url)
    policy["models"]["org/name:v1.2"] = {**policy["models"]["fake"], "aliases": ["an+alias"]}
    async with serving(tmp_path / "policies", policy) as gateway:
        model = (await gateway.http.get(f"/v1/models/{path}")).json()
        assert model["id"] == unquote(path)
        async with openai.AsyncOpenAI(api_key=KEY, base_url=f"{gateway.url}/v1") as client:
            assert (await client.models.retrieve(unquote(path))).id == unquote(path)
            assert model["id"] in [one.id async for one in client.models.list()]
            with pytest.raises(
                openai.NotFoundError, match="The model `org/no` does not exist or you do not have"
            ):
                await client.models.retrieve("org/no")


async def test_one_model(gateway: Gateway) -> None:
    model = (await gateway.http.get("/v1/models/fake")).json()
    assert (model["id"], model["object"], model["owned_by"]) == ("fake", "model", "scripted")
    narrow = {"authorization": f"Bearer {NARROW_KEY}"}
    for name in ("up", "nonsense", "a/b"):
        response = await gateway.http.get(f"/v1/models/{name}", headers=narrow)
        assert response.status_code == 404
        assert check_error(404, response.headers, response.json())["code"] == "model_not_found"


async def test_receipts_are_their_own_tenants_alone(gateway: Gateway) -> None:
    response = await gateway.http.post("/v1/chat/completions", json=chat())
    path = f"/v1/requests/{response.headers['x-request-id']}"
    receipt = (await gateway.http.get(path)).json()
    assert receipt["id"] == response.headers["x-request-id"]
    assert {"route", "meter", "quota", "trace"} <= set(receipt["stages"])
    assert receipt["stages"]["meter"]["completion_tokens"] == 3
    same_tenant = await gateway.http.get(path, headers={"authorization": f"Bearer {NARROW_KEY}"})
    assert same_tenant.json() == receipt
    other = await gateway.http.get(path, headers={"authorization": f"Bearer {OTHER_KEY}"})
    assert other.status_code == 404
    check_error(404, other.headers, other.json())
    assert (await gateway.http.get("/v1/requests/req_nonsense")).status_code == 404
