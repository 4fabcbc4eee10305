"""The page at ``/admin`` in a real Chromium, on a gateway with real traffic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Page, browsing, needs_chromium
from tests.serving import KEY, Gateway, a_policy, chat, key, serving

pytestmark = [pytest.mark.anyio, needs_chromium]

ADMIN = "tg-admin-1"
HOSTILE = "<img/src=x/onerror=document.title='taken'>"
"""As a user agent, a prompt, and all else that callers choose."""


def policy() -> dict[str, Any]:
    whole = a_policy("http://127.0.0.1:1/v1", admin={"enabled": True}, caches={"exact": {}})
    whole["keys"].append(key(ADMIN, "ops", tenant="ops", scopes=["admin", "inference"]))
    whole["models"]["down"]["fallbacks"] = ["fake"]
    threats = {
        "kind": "topics",
        "on": ["output"],
        "action": "block",
        "stream": "optimistic",
        "words": ["three"],
    }
    whole["guards"] = {"threats": threats}
    whole["prices"] = {"scripted/*": {"input": 1.0, "output": 2.0}}
    return whole


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with serving(tmp_path / "policies", policy()) as gateway:
        yield gateway


@pytest.fixture
async def page(gateway: Gateway, tmp_path: Path) -> AsyncIterator[Page]:
    async with browsing(tmp_path) as page:
        await page.look(1280, 800)
        await page.open(f"{gateway.url}/admin")
        yield page
        assert page.log == [], "an error, or something against the page's own rules"


async def sign_in(page: Page) -> None:
    await page.type("#key", ADMIN)
    await page.press("Enter")
    await page.until("!!document.querySelector('nav')")


async def test_a_newcomer_sees_the_first_requests_waterfall(gateway: Gateway, page: Page) -> None:
    await sign_in(page)
    headers = {"user-agent": HOSTILE}
    answer = await gateway.http.post("/v1/chat/completions", json=chat("down", HOSTILE), headers=headers)
    assert answer.status_code == 200
    await page.until("document.querySelector('main').innerText.includes('down → fake')")
    await page.click("tbody a[href^='#/requests/req_']")
    await page.until("!!document.querySelector('.waterfall')")
    stages = await page.run(
        "[...document.querySelectorAll('.stage')].map((one) => one.firstChild.textContent)"
    )
    assert [one for one in stages if one in ("Cache", "Queue", "Attempt 1", "Attempt 2", "Stream")]
    assert stages.index("Attempt 1") < stages.index("Attempt 2") < stages.index("Stream")
    assert HOSTILE.partition("/")[0] in await page.text("main"), "as text"
    assert await page.run("document.querySelectorAll('main img').length") == 0
    assert "taken" not in await page.run("document.title")
    # Nothing of the key is where a script, or who looks at the address, finds it.
    kept = await page.run("JSON.stringify([document.cookie, localStorage, sessionStorage, location.href])")
    assert ADMIN not in kept and "tollgate_session" not in kept
    assert KEY not in await page.run("document.documentElement.outerHTML")


async def test_a_link_that_cannot_be_decoded_still_opens_its_view(gateway: Gateway, page: Page) -> None:
    await sign_in(page)
    await page.run("location.hash = '#/requests/req_%E0%A4%A'")
    await page.until("document.querySelector('main').innerText.includes('is on record')")


async def test_the_first_load_is_small(gateway: Gateway, page: Page) -> None:
    await sign_in(page)
    await page.until("document.querySelectorAll('.figure').length > 0")
    files = [one for one in page.requests if "/admin/api/" not in one["url"]]
    assert {one["url"].split("/")[2] for one in files} == {f"127.0.0.1:{gateway.port}"}, "from nowhere else"
    assert sum(one["size"] for one in files) <= 200_000


async def test_every_view_fits_a_phone_and_reads_without_eyes(gateway: Gateway, page: Page) -> None:
    await sign_in(page)
    await gateway.http.post("/v1/chat/completions", json=chat("slow", "x"), headers={"user-agent": HOSTILE})
    await page.look(390, 844, dark=True)
    views = await page.run("[...document.querySelectorAll('nav a')].map((one) => one.hash)")
    assert len(views) == 8
    for view in views:
        await page.run(f"location.hash = {view!r}")
        await page.until(
            "!!document.querySelector('main h1') && !document.body.innerText.includes('Loading …')"
        )
        assert await page.run("document.documentElement.scrollWidth") == 390, view
        nameless = await page.run(
            "[...document.querySelectorAll('main button, main input, main select, main textarea, main a')].filter("
            "(one) => !(one.innerText || one.getAttribute('aria-label') || one.labels?.length))"
            ".map((one) => one.outerHTML)"
        )
        assert nameless == [], view
        assert await page.run("document.querySelectorAll('main').length") == 1
        assert await page.run("document.querySelectorAll('main h1').length") == 1
        if view != "#/overview":
            assert await page.run("document.activeElement.id") == "main", "the focus follows"


async def test_the_playground_streams_and_takes_back_what_is_revoked(gateway: Gateway, page: Page) -> None:
    await sign_in(page)
    await page.run("location.hash = '#/playground'")
    await page.until("document.querySelectorAll('#model option').length > 0")
    await page.run("document.querySelector('#model').value = 'fake'")
    await page.type("#prompt", "Count.")
    await page.click("main button.main")
    await page.until("!!document.querySelector('.revoked') && !document.querySelector('[aria-busy]')")
    answer = await page.text(".talk li:last-child .answer")
    assert answer.startswith("one two ") and "revoked by threats" in answer and "three" not in answer
    await page.click(".talk li:last-child a")
    await page.until("!!document.querySelector('.waterfall')")


async def test_usage_is_exported_as_it_is_shown(gateway: Gateway, page: Page) -> None:
    await gateway.http.post("/v1/chat/completions", json=chat("slow", "x"), headers={"user-agent": "=cmd/1"})
    await sign_in(page)
    await page.until("document.querySelectorAll('main tbody a').length > 0")
    await page.run("location.hash = '#/spend'")
    await page.click("#by-user_agent")
    await page.until("document.querySelector('main table')?.innerText.includes('=cmd/1')")
    exported = await page.run("fetch(document.querySelector('a.button').href).then((one) => one.text())")
    assert exported.startswith("start,user_agent,requests") and ",'=cmd/1,1," in exported
