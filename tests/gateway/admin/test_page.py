"""The page at ``/admin`` in a real Chromium, on a gateway with real traffic."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.adapter_server import adapter_server
from tests.adapters import create
from tests.browser import Page, browsing, needs_chromium
from tests.fakes import FakeUpstream, reply
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
    arms = {"plain": {}, "new": {"prompt": "brief", "weight": 1e6}}
    metrics = ["errors", "cost", "ttft"]
    whole["prompts"] = {"brief": "Be brief."}
    whole["experiments"] = {"trial": {"arms": arms, "where": {"models": ["slow"]}, "metrics": metrics}}
    whole["tenants"] = {"acme": {"budget": {"usd_per_month": 50}}}
    whole["keys"].append(key("tg-limited", "limited", tenant="other", quotas={"requests_per_minute": 1}))
    whole["prices"] = {
        name: {"input": 1.0, "output": 2.0} for name in ("scripted/*", "slow/*", "down/*", "up/*")
    }
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
    # Once each: a browser may ask for the icon again.
    assert sum({one["url"]: one["size"] for one in files}.values()) <= 90_000


async def test_every_view_fits_a_phone_and_reads_without_eyes(gateway: Gateway, page: Page) -> None:
    await sign_in(page)
    await gateway.http.post("/v1/chat/completions", json=chat("slow", "x"), headers={"user-agent": HOSTILE})
    await page.look(390, 844, dark=True)
    views = await page.run("[...document.querySelectorAll('nav a')].map((one) => one.hash)")
    assert len(views) == 10
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


async def test_adapters_of_tenants_and_of_servers_are_told_and_deleted(tmp_path: Path) -> None:
    async with adapter_server(own=["sql"]) as server:
        whole = policy()
        whole["backends"]["engine"] = {"kind": "engine", "base_url": server.url}
        whole["models"]["base"] = {"targets": [{"backend": "engine", "model": "base"}]}
        whole["adapters"] = {"servers": {"engine": {}}, "listed": {"engine": {}}}
        async with serving(tmp_path / "policies", whole) as gateway, browsing(tmp_path) as page:
            for name in ("support", "sql"):
                assert (await create(gateway.http, name)).status_code == 200
            await page.look(390, 844)
            await page.open(f"{gateway.url}/admin")
            await sign_in(page)
            await page.run("location.hash = '#/models'")
            await page.until("document.body.innerText.includes('Adapters that servers list')")
            assert "base:support" in await page.text("[aria-label='Adapters of tenants']")
            listed = await page.text("[aria-label='Adapters that servers list']")
            assert "base:sql" in listed and "hidden by their own from acme" in listed
            assert await page.run("document.documentElement.scrollWidth") == 390
            await page.run("document.querySelector('[id^=remove-]').click()")
            await page.until("!!document.querySelector('#discard')")
            await page.run("document.querySelector('#discard').click()")
            await page.until("document.querySelectorAll('[id^=remove-]').length === 1")
            assert page.log == []


async def test_an_experiment_is_told_on_a_phone(gateway: Gateway, page: Page) -> None:
    await sign_in(page)
    await gateway.http.post("/v1/chat/completions", json=chat("slow", "x"))
    await page.look(390, 844)
    await page.run("location.hash = '#/models'")
    await page.until("document.body.innerText.includes('Experiment trial')")
    told = await page.text("[aria-label='Experiment trial']")
    for part in (
        "who ask for slow",
        "prompt brief",
        "Errors",
        "$ for 1,000 requests",
        "Time to first token",
        "too early",
    ):
        assert part in told
    assert await page.run("document.documentElement.scrollWidth") == 390


async def test_a_request_is_explained_with_the_lines_of_the_policy(gateway: Gateway, page: Page) -> None:
    await sign_in(page)
    await gateway.http.post("/v1/chat/completions", json=chat("down", HOSTILE))
    await page.until("!!document.querySelector('tbody a[href^=\"#/explain/\"]')")
    await page.click("tbody a[href^='#/explain/']")
    await page.until("document.querySelectorAll('.steps > li').length > 3")
    told = await page.text("main")
    assert "It would be sent to down/x, for the model 'down'." in told
    assert "fallback 'fake'" in told and "gateway.yaml:" in told
    await page.run("document.getElementById('explain-key').value = 'nobody'")
    await page.click("form.ask button.main")
    await page.until("document.querySelector('main').innerText.includes('401 invalid_api_key')")


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
    assert exported.startswith("start,user_agent,requests")
    assert re.search(r"\r\n\d{4}-\d\d-\d\dT\d\d:00:00Z,'=cmd/1,1,", exported)
    await page.run(
        "(() => { const one = document.getElementById('then'); one.value = 'finish_reason';"
        " one.dispatchEvent(new Event('change')); })()"
    )
    await page.until("document.querySelector('main table thead')?.innerText.includes('Ending')")
    assert await page.run("document.getElementById('then').value") == "finish_reason"
    await page.until("document.querySelector('main tbody')?.innerText.includes('stop')")
    exported = await page.run("fetch(document.querySelector('a.button').href).then((one) => one.text())")
    assert exported.startswith("start,user_agent,finish_reason,requests")


async def test_a_key_is_made_changed_rotated_and_revoked(gateway: Gateway, page: Page) -> None:
    await sign_in(page)
    await page.run("location.hash = '#/keys'")
    await page.click("#new-key")
    await page.until("document.activeElement.name === 'id'")
    await page.type("[name=id]", "ci")
    await page.type("[name=requests_per_minute]", "700")
    await page.press("Enter")
    made = await page.until("document.querySelector('#secret')?.textContent")
    await _answered(gateway, made, 200)
    row = "document.querySelector('#Limits-ci').closest('tr').innerText"
    await page.until(f"{row}.includes('700 requests a minute')")
    await page.click("#seen")
    assert made not in await page.run("document.documentElement.outerHTML"), "it is shown once"
    await page.click("#Limits-ci")
    await page.until("!!document.querySelector('#send-key')")
    await page.run("document.querySelector('[name=requests_per_minute]').value = '900'")
    await page.click("#send-key")
    await page.until(f"{row}.includes('900 requests a minute')")
    await page.click("#Rotate-ci")
    await page.click("#sure")
    rotated = await page.until("document.querySelector('#secret')?.textContent")
    await _answered(gateway, rotated, 200)
    await _answered(gateway, made, 200)
    await page.until(f"{row}.includes('the one before until')")
    await page.click("#Revoke-ci")
    await page.click("#sure")
    await page.until("!document.querySelector('#Revoke-ci')")
    await _answered(gateway, rotated, 401)
    audit = await gateway.http.get("/admin/api/audit", headers={"authorization": f"Bearer {ADMIN}"})
    actions = [one["action"] for one in audit.json()["entries"]]
    assert actions == ["key.revoke", "key.rotate", "key.change", "key.create"]
    assert made not in audit.text and rotated not in audit.text


async def test_what_is_not_in_use_is_told_in_words_and_not_offered(tmp_path: Path) -> None:
    whole = policy()
    whole["backends"]["up"]["api_key"] = "${KEY_THAT_NOBODY_SET}"
    whole["backends"]["scripted"]["region"] = "eu"
    whole["backends"]["down"]["region"] = "us"
    whole["models"]["abroad"] = {"targets": [{"backend": "down", "model": "x"}], "residency": ["eu"]}
    whole["tenants"]["acme"]["residency"] = ["eu"]
    async with serving(tmp_path / "policies", whole) as gateway, browsing(tmp_path) as page:
        answer = await gateway.http.post(
            "/admin/api/backends/slow/drain", headers={"authorization": f"Bearer {ADMIN}"}
        )
        assert answer.is_success
        await page.look(1280, 800)
        await page.open(f"{gateway.url}/admin")
        await sign_in(page)
        unset = "disabled: KEY_THAT_NOBODY_SET is not set"

        async def badge(view: str, caption: str, row: str) -> str:
            await page.run(f"location.hash = '#/{view}'")
            rows = f"[...document.querySelectorAll('[aria-label=\"{caption}\"] tbody tr')]"
            one = f"{rows}.find((one) => one.innerText.startsWith('{row}'))?.querySelector('.badge')"
            await page.until(f"{one} && !{one}.classList.contains('good')")
            return str(await page.run(f"{one}.innerText"))

        for view in ("overview", "models"):
            assert await badge(view, "Backends", "up") == unset
            assert await badge(view, "Backends", "slow") == "drained"
        targets = {
            name: await badge("models", "Models and targets", name) for name in ("up", "slow", "abroad")
        }
        assert targets == {"up": unset, "slow": "drained", "abroad": "never asked: not in its regions"}
        await page.run("location.hash = '#/tenants'")
        await page.until("document.querySelector('main').innerText.includes('stays in eu')")
        await page.run("location.hash = '#/keys'")
        row = "document.querySelector('#Limits-acme-1').closest('tr').innerText"
        await page.until(f"{row}.includes('by its tenant')")
        assert "$50.00 a month, its tenant's" in await page.run(row)
        await page.run("location.hash = '#/playground'")
        await page.until("document.querySelectorAll('#model option').length > 0")
        offered = "[...document.querySelectorAll('#model option:{}')].map((one) => one.text)"
        assert await page.run(offered.format("enabled")) == ["fake", "down"]
        assert await page.run(offered.format("disabled")) == [
            "slow (slow: it is drained)",
            "up (up: KEY_THAT_NOBODY_SET is not set)",
            "abroad (no backend in its regions)",
        ]
        assert page.log == []


async def _answered(gateway: Gateway, token: str, status: int) -> None:
    """Once it is in force: this gateway has no supervisor, which would wait for its workers."""
    headers = {"authorization": f"Bearer {token}", "cache-control": "no-store"}
    async with asyncio.timeout(120):
        while True:
            answer = await gateway.http.post("/v1/chat/completions", json=chat("fake", "x"), headers=headers)
            if answer.status_code == status:
                return
            await asyncio.sleep(0.1)


async def test_requests_are_told_apart_by_how_they_ended(gateway: Gateway, page: Page) -> None:
    for _ in range(2):  # the second from the cache
        await gateway.http.post("/v1/chat/completions", json=chat("slow", "again"))
    limited = {"authorization": "Bearer tg-limited"}
    codes = [
        (
            await gateway.http.post("/v1/chat/completions", json=chat("slow", text), headers=limited)
        ).status_code
        for text in ("a", "b")
    ]
    assert codes == [200, 429]
    await gateway.http.post("/v1/chat/completions", json=chat("fake", "fail"))
    await sign_in(page)
    await page.run("location.hash = '#/requests'")
    rows = "[...document.querySelectorAll('main tbody tr')].map((one) => one.innerText)"
    await page.until(f"{rows}.length === 5")
    await page.until(
        "document.querySelector('[name=tenant]').options.length === 4"
    )  # acme, other, ops, and all
    for outcome, count, has in (
        *(("failed", 1, "50"), ("limited", 1, "429"), ("cached", 1, "cached"), ("answered", 2, "200")),
    ):
        select = "document.querySelector('[name=outcome]')"
        await page.run(f"{select}.value = '{outcome}'; {select}.dispatchEvent(new Event('change'))")
        await page.until(f"{rows}.length === {count} && {rows}.every((one) => one.includes('{has}'))")
    await page.run(
        "document.querySelector('[name=span]').value = 'own';"
        "document.querySelector('[name=to]').value = '2020-01-01T00:00';"
        "document.querySelector('[name=span]').dispatchEvent(new Event('change'))"
    )
    await page.until("document.querySelector('main').innerText.includes('No requests yet')")


async def test_a_request_says_what_it_cost_and_what_was_reserved(gateway: Gateway, page: Page) -> None:
    body = {**chat("fake", "Count."), "max_tokens": 100}
    answer = await gateway.http.post("/v1/chat/completions", json=body)
    await sign_in(page)
    await page.run(f"location.hash = '#/requests/{answer.headers['x-request-id']}'")
    await page.until("!!document.querySelector('[aria-label=Cost]')")
    told = await page.text("[aria-label=Cost]")
    assert "Reserved when it was admitted: " in told and "given back" in told and "scripted / x" in told


async def test_an_engines_gpus_are_shown(tmp_path: Path) -> None:
    gpu = {
        "gpu": 0,
        "name": "Fake H100",
        "utilization_ratio": 0.37,
        "memory_used_bytes": 4 * 2**30,
        "memory_total_bytes": 80 * 2**30,
        "pcie_receive_bytes_per_second": 4 * 2**20,
        "temperature_celsius": 61,
        "power_watts": 350.5,
        "power_limit_watts": 700,
    }
    async with FakeUpstream() as upstream:
        upstream.health = reply({"running": 1, "max_num_seqs": 8, "gpus": [gpu, {"gpu": 1}]})
        whole = policy()
        whole["backends"]["engine"] = {"kind": "engine", "base_url": upstream.base_url.removesuffix("/v1")}
        whole["models"]["ours"] = {"targets": [{"backend": "engine", "model": "m"}]}
        async with serving(tmp_path / "policies", whole) as gateway, browsing(tmp_path) as page:
            await page.open(f"{gateway.url}/admin")
            await sign_in(page)
            await page.look(1280, 800)
            rows = "[...document.querySelectorAll('[aria-label=\"GPUs\"] tbody tr')]"
            await page.until(f"{rows}.length === 2")
            cells = f"{rows}.map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
            first, second = await page.run(cells)
            assert first[:5] == ["engine", "0 · Fake H100", "37%", "5.0%", "4.00 GiB / 80.0 GiB"]
            assert first[5:] == ["–", "4.00 MiB/s", "–", "61 °C", "351 / 700 W"]
            assert second == ["engine", "1", *["–"] * 8]
            assert page.log == []
