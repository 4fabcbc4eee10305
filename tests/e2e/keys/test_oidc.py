"""Signing in at the page by an OpenID provider, over real sockets; and what the keys of ``admin.oidc`` do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.browser import browsing, needs_chromium
from tests.e2e.keys.harness import shows
from tests.gateway.admin.oidc_provider import CALLBACK, CLIENT, SECRET, Provider, providing
from tests.gateway.identity.issuer import OTHER_RSA, RSA
from tests.serving import Gateway, a_policy, serving

pytestmark = pytest.mark.anyio

COOKIE = "tollgate_sign_in"


@dataclass
class Desk:
    """A gateway, its provider, and a browser that has been nowhere yet."""

    gateway: Gateway
    provider: Provider

    def browser(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.gateway.url, timeout=300, trust_env=False)

    async def login(self, browser: httpx.AsyncClient) -> httpx.Response:
        return await browser.get("/admin/api/oidc/login")

    async def sent_back(self, address: str) -> str:
        """What the provider sends the browser back to, at the gateway's real address."""
        async with httpx.AsyncClient(trust_env=False) as plain:
            answer = await plain.get(address)
        assert answer.headers["location"].startswith(CALLBACK + "?")
        return str(answer.headers["location"].removeprefix("https://gateway.example"))

    async def come_back(self, browser: httpx.AsyncClient, path: str) -> httpx.Response:
        """The cookie is for https alone, and this is not: it is carried by hand."""
        held = {cookie.name: cookie.value or "" for cookie in browser.cookies.jar}
        return await browser.get(path, headers={"cookie": "; ".join(f"{n}={v}" for n, v in held.items())})

    async def sign_in(self, browser: httpx.AsyncClient) -> httpx.Response:
        answer = await self.login(browser)
        assert answer.status_code == 303, answer.text
        return await self.come_back(browser, await self.sent_back(answer.headers["location"]))

    async def state(self, answer: httpx.Response, browser: httpx.AsyncClient) -> dict[str, Any]:
        return dict((await browser.get("/admin/api/session", headers=session_of(answer))).json())


def session_of(answer: httpx.Response) -> dict[str, str]:
    [found] = [one for one in answer.headers.get_list("set-cookie") if one.startswith("tollgate_session=")]
    return {"cookie": found.split(";")[0]}


def oidc(provider: Provider, **more: Any) -> dict[str, Any]:
    config = {
        "issuer": provider.issuer,
        "client_id": CLIENT,
        "client_secret": SECRET,
        "redirect_uri": CALLBACK,
        "admins": ["ops"],
        **more,
    }
    return {"admin": {"enabled": True, "oidc": {k: v for k, v in config.items() if v is not None}}}


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with providing() as provider:
        yield provider


@pytest.fixture
async def desk(provider: Provider, tmp_path: Path) -> AsyncIterator[Desk]:
    async with serving(tmp_path / "policies", a_policy("http://127.0.0.1:1/v1", **oidc(provider))) as gateway:
        yield Desk(gateway, provider)


async def edited(desk: Desk, **more: Any) -> None:
    before = (await desk.gateway.metrics())["tollgate_policy_generation"]
    desk.gateway.write(a_policy("http://127.0.0.1:1/v1", **oidc(desk.provider, **more)))
    await desk.gateway.generation(int(before) + 1)


@shows(
    "admin.oidc",
    "admin.oidc.issuer",
    "admin.oidc.client_id",
    "admin.oidc.client_secret",
    "admin.oidc.redirect_uri",
    "admin.oidc.admins",
)
async def test_who_has_the_role_is_signed_in(desk: Desk) -> None:
    async with desk.browser() as browser:
        assert (await browser.get("/admin/api/session")).json()["oidc"] is True
        answer = await desk.sign_in(browser)
        assert (answer.status_code, answer.headers["location"]) == (303, "/admin")
        state = await desk.state(answer, browser)
        assert (state["name"], state["role"], state["scopes"]) == ("alice@example.com", "admin", ["admin"])
        headers = session_of(answer)
        assert (await browser.get("/admin/api/snapshot", headers=headers)).status_code == 200
        headers["x-csrf-token"] = state["csrf"]
        flushed = await browser.post("/admin/api/caches/flush", json={"tenant": "acme"}, headers=headers)
        assert flushed.status_code == 200
        [entry] = (await browser.get("/admin/api/audit", headers=headers)).json()["entries"]
        assert "oidc:alice" in entry["by"].values()
        cookies = answer.headers.get_list("set-cookie")
        assert all("HttpOnly" in one and "Secure" in one for one in cookies)
        assert any("SameSite=Strict" in one for one in cookies)


@shows("admin.oidc.scopes")
async def test_what_the_provider_is_asked_for(desk: Desk) -> None:
    async with desk.browser() as browser:
        await desk.sign_in(browser)
        await edited(desk, scopes=["openid", "groups"])
        await desk.sign_in(browser)
    assert [one["scope"] for one in desk.provider.asked] == ["openid profile email", "openid groups"]
    first, second = desk.provider.asked
    for name in ("state", "nonce", "code_challenge"):
        assert first[name] != second[name] and len(first[name]) >= 32


@shows("admin.oidc.roles_claim", "admin.oidc.viewers")
async def test_a_viewer_looks_and_changes_nothing(desk: Desk) -> None:
    desk.provider.claims = {"realm_access": {"roles": ["staff", "watch"]}, "roles": ["ops"]}
    await edited(desk, roles_claim="realm_access.roles", viewers=["watch"])
    async with desk.browser() as browser:
        answer = await desk.sign_in(browser)
        state = await desk.state(answer, browser)
        assert state["role"] == "viewer"
        headers = {**session_of(answer), "x-csrf-token": state["csrf"]}
        assert (await browser.get("/admin/api/tenants", headers=headers)).status_code == 200
        for path in ("/admin/api/caches/flush", "/admin/api/playground"):
            refused = await browser.post(path, json={"tenant": "acme"}, headers=headers)
            assert refused.json()["error"]["code"] == "wrong_role"
        files = {"files": {"gateway.yaml": "version: 1\nmodels: {}\n"}}
        judged = await browser.post("/admin/api/policy/validate", json=files, headers=headers)
        assert judged.status_code == 200 and "valid" in judged.json()
        del headers["x-csrf-token"]
        assert (
            await browser.post("/admin/api/policy/validate", json=files, headers=headers)
        ).status_code == 403
        listed = await browser.get("/admin/api/keys", headers=headers)
        assert "acme-1" in listed.text and "sha256" not in listed.text
        headers["x-csrf-token"] = state["csrf"]
        changed = await browser.patch("/admin/api/keys/acme-1", json={"models": ["*"]}, headers=headers)
        assert changed.json()["error"]["code"] == "wrong_role"
        assert (await browser.delete("/admin/api/session", headers=headers)).status_code == 200


@needs_chromium
async def test_a_viewers_page_offers_no_change(desk: Desk, tmp_path: Path) -> None:
    desk.provider.claims = {"roles": ["watch"]}
    await edited(desk, viewers=["watch"])
    async with desk.browser() as browser:
        name, _, value = session_of(await desk.sign_in(browser))["cookie"].partition("=")
    async with browsing(tmp_path / "browser") as page:
        await page.ask(
            "Network.setCookie", name=name, value=value, url=f"{desk.gateway.url}/admin", path="/admin"
        )
        buttons = "[...document.querySelectorAll('main button:enabled')].map((one) => one.innerText)"
        for view, there in (("models", "scripted"), ("keys", "acme-1"), ("policy", "Validate")):
            await page.open(f"{desk.gateway.url}/admin#/{view}")
            await page.until(f"document.querySelector('main')?.innerText.includes({there!r})")
            assert set(await page.run(buttons)) <= {"Validate"}, view
        await page.type("#check-text", "version: 1\nmodels: {a: {targets: [{backend: nosuch, model: x}]}}")
        await page.click("form.ask button")
        await page.until("document.querySelector('form.ask').innerText.includes('not valid')")
        assert page.log == []


async def test_a_policy_that_drops_the_role_or_the_provider_ends_the_session(desk: Desk) -> None:
    async with desk.browser() as browser:
        answer = await desk.sign_in(browser)
        headers = session_of(answer)
        await edited(desk, admins=["others"])
        ended = await browser.get("/admin/api/snapshot", headers=headers)
        assert (ended.status_code, ended.json()["error"]["code"]) == (401, "session_ended")
        await edited(desk, client_id="another")
        assert (await browser.get("/admin/api/snapshot", headers=headers)).status_code == 401
        desk.gateway.write(a_policy("http://127.0.0.1:1/v1", admin={"enabled": True}))
        await desk.gateway.generation(4)
        assert (await browser.get("/admin/api/snapshot", headers=headers)).status_code == 401
        assert (await desk.login(browser)).status_code == 404


async def test_keys_are_rotated(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk.browser() as browser:
        assert (await desk.sign_in(browser)).headers["location"] == "/admin"
        desk.provider.signing = ("made-up", RSA)
        assert (await desk.sign_in(browser)).headers["location"] == "/admin#/sign-in/token"
        desk.provider.keys = {"second": OTHER_RSA}
        desk.provider.signing = ("second", OTHER_RSA)
        monkeypatch.setattr("gateway.identity.jwks_source.PAUSE", 3600.0)  # not read anew at each such key id
        assert (await desk.sign_in(browser)).headers["location"] == "/admin#/sign-in/token"
        monkeypatch.setattr("gateway.identity.jwks_source.PAUSE", 0.0)
        assert (await desk.sign_in(browser)).headers["location"] == "/admin"
        desk.provider.signing = ("first", RSA)
        assert (await desk.sign_in(browser)).headers["location"] == "/admin#/sign-in/token"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"roles": ["staff"]}, "role"),
        ({"roles": None}, "role"),
        ({"tampered": True}, "token"),
        ({"signing": ("first", OTHER_RSA)}, "token"),
        ({"signing": ("unknown", RSA)}, "token"),
        ({"claims": {"nonce": "another"}}, "token"),
        ({"claims": {"nonce": None}}, "token"),
        ({"claims": {"aud": "another"}}, "token"),
        ({"claims": {"aud": ["another", CLIENT]}}, "token"),
        ({"claims": {"aud": ["another", CLIENT], "azp": "another"}}, "token"),
        ({"claims": {"iss": "https://evil.example"}}, "token"),
        ({"claims": {"exp": 1}}, "token"),
        ({"claims": {"sub": None}}, "token"),
        ({"secret": "another"}, "provider"),
        ({"metadata": {"token_endpoint": "http://elsewhere.example/token"}}, "provider"),
    ],
)
async def test_what_is_not_sound_signs_nobody_in(desk: Desk, how: dict[str, Any], reason: str) -> None:
    for name, value in how.items():
        setattr(desk.provider, name, value)
    async with desk.browser() as browser:
        answer = await desk.sign_in(browser)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/admin#/sign-in/{reason}")
    assert not any(one.startswith("tollgate_session") for one in answer.headers.get_list("set-cookie"))


async def test_a_sign_in_belongs_to_the_browser_that_began_it(desk: Desk) -> None:
    async with desk.browser() as mine, desk.browser() as other, desk.browser() as nobody:
        begun = await desk.login(mine)
        back = await desk.sent_back(begun.headers["location"])
        for browser in (nobody, other):
            if browser is other:
                await desk.login(browser)  # a sign-in of its own, with another state
            refused = await desk.come_back(browser, back)
            assert refused.headers["location"] == "/admin#/sign-in/state"
        altered = await desk.come_back(mine, back.replace("state=", "state=x"))
        assert altered.headers["location"] == "/admin#/sign-in/state"
        mixed = await desk.come_back(mine, back.replace("iss=http", "iss=https"))
        assert mixed.headers["location"] == "/admin#/sign-in/state"
    assert desk.provider.refused == [], "the code was not even shown"


async def test_a_code_is_good_once_and_errors_are_told(desk: Desk) -> None:
    async with desk.browser() as browser:
        begun = await desk.login(browser)
        back = await desk.sent_back(begun.headers["location"])
        held = dict(browser.cookies)
        assert (await desk.come_back(browser, back)).headers["location"] == "/admin"
        browser.cookies.update(held)
        assert (await desk.come_back(browser, back)).headers["location"] == "/admin#/sign-in/provider"
        state = desk.provider.asked[-1]["state"]
        denied = await desk.come_back(browser, f"/admin/api/oidc/callback?error=access_denied&state={state}")
        assert denied.headers["location"] == "/admin#/sign-in/refused"


async def test_another_issuers_metadata_is_not_believed(desk: Desk) -> None:
    desk.provider.metadata = {"issuer": "https://evil.example"}
    async with desk.browser() as browser:
        assert (await desk.login(browser)).headers["location"] == "/admin#/sign-in/provider"
