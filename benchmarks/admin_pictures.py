"""The pictures of the page at /admin in ``docs/images``: of a gateway that some callers keep busy.

    python -m benchmarks.admin_pictures [FOLDER]

It takes about a minute and a half, for a minute's charts. Run it after a change of how the page looks.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.admin_page import gateway
from gateway.identity.api_keys import hash_key
from tests.browser import Page, browsing

OPERATOR = "tg-operator-of-the-pictures"
CALLERS = {  # by key: its tenant, its user agent, and how many ask at once
    "acme-app": ("acme", "openai-python/2.8", 4),
    "acme-batch": ("acme", "langchain/0.3", 3),
    "umbrella-ci": ("umbrella", "curl/8.5", 2),
}
QUESTIONS = (
    "Summarize the meeting of Monday.",
    "Which of these two contracts ends first?",
    "Write a reply to the customer, friendly and short.",
    "What is the capital of France?",
)
SECONDS = 70.0
"""In which the callers ask before the pictures are taken: the charts show the last of them."""
WIDTH, SCALE = 1280, 1.5


POLICY = """
version: 1
admin: {enabled: true}
backends:
  fast: {kind: fake, token_delay: 25ms, max_concurrency: 4, region: eu, script: [&answer {reply: REPLY}]}
  slow: {kind: fake, token_delay: 65ms, max_concurrency: 2, region: us, script: [*answer]}
  down: {kind: openai, base_url: "http://127.0.0.1:1/v1"}
  openai: {kind: openai, base_url: "https://api.openai.com/v1", api_key: "${OPENAI_API_KEY}"}
models:
  chat: {targets: [{backend: fast, model: small}]}
  large: {targets: [{backend: slow, model: large}]}
  shaky: {targets: [{backend: down, model: gone}], fallbacks: [chat]}
  gpt-4o-mini: {targets: [{backend: openai, model: gpt-4o-mini}]}
prices: {small: &price {input: 0.4, output: 1.6}, large: *price, gone: *price}
tiers: {enterprise: {priority: 2, weight: 8}, free: {max_wait: 5s}}
tenants:
  acme: {tier: enterprise, budget: {usd_per_month: 500}, quotas: {tokens_per_minute: 200000}}
  umbrella: {tier: free, quotas: {requests_per_minute: 60}}
  clinic: {residency: [eu], budget: {usd_per_month: 50}}
guards:
  secrets: {"on": [input], action: mask}
  threats: {kind: topics, "on": [output], action: block, stream: optimistic, words: [bomb]}
caches: {exact: {}}
"""
REPLY = (
    "The second of the two ends first, in March of next year, unless it is renewed before the end of January. "
    "The first one goes on for another year, and neither of them says what becomes of the deposit."
)


def policy() -> dict[str, Any]:
    return dict(yaml.safe_load(POLICY.replace("REPLY", f'"{REPLY}"')))


def keys() -> list[dict[str, Any]]:
    callers = {name: {"tenant": tenant} for name, (tenant, _, _) in CALLERS.items()}
    clinic = {
        "tenant": "clinic",
        "models": ["chat"],
        "expires": "2099-01-01",
        "allow_ips": ["10.1.0.0/16"],
        "quotas": {"requests_per_minute": 30, "concurrent_requests": 4},
    }
    operator = {"id": "operator", "sha256": hash_key(OPERATOR), "scopes": ["admin", "inference"]}
    others = {**callers, "clinic-app": clinic}
    return [operator, *({"id": name, "sha256": hash_key(name), **one} for name, one in others.items())]


async def ask(http: httpx.AsyncClient, key: str, agent: str, chance: random.Random) -> None:
    """One question after the other, until this is cancelled."""
    headers = {"authorization": f"Bearer {key}", "user-agent": agent}
    while True:
        model = chance.choices(("chat", "large", "shaky"), (6, 3, 2))[0]
        question = chance.choice(QUESTIONS) if chance.random() < 0.3 else f"Question {chance.random()}"
        body = {"model": model, "messages": [{"role": "user", "content": question}], "stream": True}
        async with http.stream(
            "POST", "/v1/chat/completions", json={**body, "max_tokens": 80}, headers=headers
        ) as answer:
            await answer.aread()
        await asyncio.sleep(chance.uniform(0.0, 0.4) if answer.status_code < 400 else 2.0)


async def take(url: str, folder: Path, into: Path) -> None:
    chance = random.Random(1)
    async with httpx.AsyncClient(base_url=url, timeout=60) as http, browsing(folder) as page:
        asking = [
            asyncio.create_task(ask(http, key, agent, chance))
            for key, (_, agent, number) in CALLERS.items()
            for _ in range(number)
        ]
        try:
            await page.look(WIDTH, 860, scale=SCALE)
            await page.open(f"{url}/admin")
            await page.type("#key", OPERATOR)
            await page.press("Enter")
            await page.until("!!document.querySelector('nav')")
            await asyncio.sleep(SECONDS)
            await picture(page, into / "admin-live.webp")
            await page.look(WIDTH, 860, dark=True, scale=SCALE)
            await asyncio.sleep(1.5)
            await picture(page, into / "admin-dark.webp")
            await page.look(WIDTH, 560, scale=SCALE)
            await show(page, "keys", "!!document.querySelector('tbody')")
            await picture(page, into / "admin-keys.webp")
            shaky = await http.get(
                "/admin/api/requests?model=shaky&tenant=acme&outcome=answered",
                headers={"authorization": f"Bearer {OPERATOR}"},
            )
            tried = [one for one in shaky.json()["requests"] if one["attempts"] > 1]
            longest = max(tried, key=lambda one: float(one["seconds"]))  # it has waited in the queue, too
            await page.look(WIDTH, 980, scale=SCALE)
            await show(page, f"requests/{longest['id']}", "!!document.querySelector('.waterfall')")
            await picture(page, into / "admin-request.webp")
        finally:
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


async def show(page: Page, view: str, there: str) -> None:
    await page.run(f"location.hash = '#/{view}'")
    await page.until(there)
    await page.run("document.activeElement.blur()")
    await asyncio.sleep(0.5)


async def picture(page: Page, path: Path) -> None:
    await page.picture(path, kind="webp")
    print(path)


def main() -> None:
    into = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Keys that the page may change stand in a file of their own.
        (folder / "policies").mkdir()
        (folder / "policies" / "keys.yaml").write_text(yaml.safe_dump({"keys": keys()}))
        with gateway(folder, policy()) as (_, port):
            asyncio.run(take(f"http://127.0.0.1:{port}", folder, into))


if __name__ == "__main__":
    main()
