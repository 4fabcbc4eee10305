"""Signing in at the page over a real socket: what the cookie opens, to whom, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.page_files import paths
from gateway.identity.session_cookie import Seal, Session
from tests.serving import KEY, Gateway, a_policy, chat, key, serving

pytestmark = pytest.mark.anyio

ADMIN, BOTH, FAR = "tg-admin-1", "tg-both-1", "tg-far-1"


def policy(**more: Any) -> dict[str, Any]:
    whole = a_policy("http://127.0.0.1:1/v1", **{"admin": {"enabled": True}, **more})
    whole["keys"] += [
        key(ADMIN, "ops", scopes=["admin"]),
        key(BOTH, "both", scopes=["admin", "inference"]),
        key(FAR, "far", scopes=["admin"], allow_ips=["192.0.2.0/24"]),
    ]
    return whole


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with serving(tmp_path / "policies", policy()) as gateway:
        del gateway.http.headers["authorization"]
        yield gateway


async def sign_in(gateway: Gateway, token: str = ADMIN, **headers: str) -> httpx.Response:
    return await gateway.http.post("/admin/api/session", json={"key": token}, headers=headers)


async def test_the_page_is_for_everybody_and_what_it_shows_is_not(gateway: Gateway) -> None:
    for path in paths():
        response = await gateway.http.get(path)
        assert response.status_code == 200, path
        rules = response.headers["content-security-policy"]
        assert "unsafe" not in rules and "frame-ancestors 'none'" in rules and "default-src 'none'" in rules
        again = await gateway.http.get(path, headers={"if-none-match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        plain = await gateway.http.get(path, headers={"accept-encoding": "identity"})
        assert plain.content == response.content and "content-encoding" not in plain.headers
    assert (await gateway.http.get("/admin/")).status_code == 200
    assert (await gateway.http.post("/admin")).status_code == 405
    for path in ("/admin/assets/../page_files.py", "/admin/assets/none.js", "/admin/api/snapshot"):
        assert (await gateway.http.get(path)).status_code == 401


async def test_without_the_policys_word_there_is_no_page(tmp_path: Path) -> None:
    async with serving(tmp_path / "policies", policy(admin={})) as gateway:
        for path in ("/admin", "/admin/assets/main.js", "/admin/api/session"):
            assert (await gateway.http.get(path)).status_code == 404
        headers = {"authorization": f"Bearer {BOTH}"}
        answer = await gateway.http.post("/admin/api/playground", json=chat(), headers=headers)
        assert answer.status_code == 404


async def test_a_key_opens_a_session_and_is_not_in_it(gateway: Gateway) -> None:
    assert (await gateway.http.get("/admin/api/session")).json() == {
        "signed_in": False,
        "oidc": False,
        "scopes": [],
    }
    response = await sign_in(gateway)
    state = response.json()
    assert (state["signed_in"], state["name"], state["scopes"]) == (True, "ops", ["admin"])
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/admin" in cookie
    assert ADMIN not in cookie and "Secure" not in cookie
    assert (await gateway.http.get("/admin/api/snapshot")).status_code == 200
    assert (await gateway.http.get("/admin/api/session")).json() == state
    secure = await sign_in(gateway, origin=f"https://127.0.0.1:{gateway.port}")
    assert "Secure" in secure.headers["set-cookie"]


async def test_only_admin_keys_from_where_they_may_be_used(gateway: Gateway) -> None:
    for token, status, code in (
        (KEY, 403, "wrong_scope"),
        ("tg-nobody", 401, "invalid_api_key"),
        (FAR, 403, "ip_not_allowed"),
    ):
        response = await sign_in(gateway, token)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert "set-cookie" not in response.headers


async def test_a_change_needs_the_token_and_the_gateways_own_page(gateway: Gateway) -> None:
    csrf = (await sign_in(gateway)).json()["csrf"]

    async def change(**headers: str) -> str:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await gateway.http.post("/admin/api/caches/flush", json={"tenant": "acme"}, headers=named)
        return str(answer.json().get("error", {}).get("code", answer.status_code))

    assert await change() == "wrong_csrf_token"
    assert await change(x_csrf_token="x" * 32) == "wrong_csrf_token"
    assert await change(x_csrf_token=csrf, origin="https://evil.example") == "wrong_origin"
    assert await change(x_csrf_token=csrf, sec_fetch_site="cross-site") == "wrong_origin"
    assert await change(x_csrf_token=csrf, sec_fetch_site="same-site") == "wrong_origin"
    assert await change(x_csrf_token=csrf, sec_fetch_site="same-origin", origin=gateway.url) == "200"
    reading = {"origin": "https://evil.example"}
    assert (await gateway.http.get("/admin/api/keys", headers=reading)).status_code == 403
    assert (await sign_in(gateway, origin="https://evil.example")).status_code == 403, "nor be signed in"
    made, *refused = (await gateway.http.get("/admin/api/audit")).json()["entries"]
    assert made["action"] == "cache.flush" and made["ok"]
    assert [one["target"] for one in refused] == ["POST /admin/api/caches/flush"] * 5
    assert {one["by"]["key"] for one in (made, *refused)} == {"ops"}


async def test_a_cookie_opens_nothing_but_the_page(gateway: Gateway) -> None:
    response = await sign_in(gateway, BOTH)
    headers = {
        "cookie": response.headers["set-cookie"].split(";")[0],
        "x-csrf-token": response.json()["csrf"],
    }
    answer = await gateway.http.post("/v1/chat/completions", json=chat(), headers=headers)
    assert answer.status_code == 401
    answer = await gateway.http.post("/admin/api/playground", json=chat(), headers=headers)
    assert answer.json()["choices"][0]["message"]["content"] == "one two three"


async def test_the_playground_asks_models_only_for_keys_that_may(gateway: Gateway) -> None:
    csrf = (await sign_in(gateway)).json()["csrf"]
    answer = await gateway.http.post("/admin/api/playground", json=chat(), headers={"x-csrf-token": csrf})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_scope")


async def test_a_revoked_key_ends_its_sessions(gateway: Gateway) -> None:
    await sign_in(gateway)
    fresh = policy()
    fresh["keys"] = [one for one in fresh["keys"] if one["id"] != "ops"]
    gateway.write(fresh)
    async with asyncio.timeout(300):
        while (await gateway.http.get("/admin/api/snapshot")).status_code == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    answer = await gateway.http.get("/admin/api/snapshot")
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "session_ended")
    assert (await gateway.http.get("/admin/api/session")).json()["signed_in"] is False


@pytest.mark.parametrize("by_cookie", [True, False])
async def test_a_revoked_key_ends_the_stream_of_an_open_page(gateway: Gateway, by_cookie: bool) -> None:
    headers = {} if by_cookie else {"authorization": f"Bearer {ADMIN}"}
    if by_cookie:
        await sign_in(gateway)
    fresh = policy()
    fresh["keys"] = [one for one in fresh["keys"] if one["id"] != "ops"]
    async with gateway.http.stream("GET", "/admin/api/live", headers=headers) as response:
        assert response.status_code == 200
        gateway.write(fresh)
        async with asyncio.timeout(300):
            async for _ in response.aiter_lines():  # until the gateway ends it
                pass
    assert (await gateway.http.get("/admin/api/live", headers=headers)).status_code == 401


async def test_a_gateway_that_stops_does_not_wait_for_open_pages(tmp_path: Path) -> None:
    async with httpx.AsyncClient(timeout=300, trust_env=False) as browser:
        async with serving(tmp_path / "policies", policy(), drain=100) as gateway:
            url, headers = f"{gateway.url}/admin/api/live", {"authorization": f"Bearer {ADMIN}"}
            response = await browser.send(browser.build_request("GET", url, headers=headers), stream=True)
            assert response.status_code == 200
        await response.aread()  # it ended well, and was not cut when the time to drain was over


async def test_an_edit_that_leaves_the_key_alone_leaves_the_stream_alone(gateway: Gateway) -> None:
    await sign_in(gateway)
    async with gateway.http.stream("GET", "/admin/api/live") as response:
        fresh = policy()
        fresh["keys"] = [one for one in fresh["keys"] if one["id"] != "far"]
        gateway.write(fresh)
        async with asyncio.timeout(300):
            async for line in response.aiter_lines():
                if '"generation":2' in line:
                    return
    raise AssertionError("the stream has ended")


async def test_signing_out_takes_the_cookie(gateway: Gateway) -> None:
    await sign_in(gateway)
    response = await gateway.http.delete("/admin/api/session")
    assert "Max-Age=0" in response.headers["set-cookie"]
    assert (await gateway.http.get("/admin/api/snapshot")).status_code == 401


async def test_a_session_ends_by_the_policys_time(tmp_path: Path) -> None:
    short = policy(admin={"enabled": True, "session": "1ms"})
    async with serving(tmp_path / "policies", short) as gateway:
        del gateway.http.headers["authorization"]
        cookie = (await sign_in(gateway)).headers["set-cookie"].split(";")[0]
        await asyncio.sleep(0.002)
        answer = await gateway.http.get("/admin/api/snapshot", headers={"cookie": cookie})
        assert answer.json()["error"]["code"] == "session_ended"


@given(st.binary(max_size=60), st.integers(0, 200))
def test_no_made_up_or_altered_text_is_a_session(noise: bytes, place: int) -> None:
    now = 1000.0
    seal = Seal("secret", "admin session", Session, lambda: now)
    session = Session(expires=now + 60, digest="0" * 64, csrf="x")
    text = seal.close(session)
    assert seal.open(text) == session
    assert seal.open(noise.decode("latin-1")) is None
    at = place % len(text)
    altered = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
    assert seal.open(altered) is None
    assert Seal("another", "admin session", Session, lambda: now).open(text) is None
    assert Seal("secret", "sign-in", Session, lambda: now).open(text) is None
    now += 60
    assert seal.open(text) is None
