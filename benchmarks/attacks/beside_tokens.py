"""What a provider bills beside its tokens: a way round a budget?"""

from __future__ import annotations

from typing import Any

from benchmarks.attacks.frame import MALLORY, Rig, must
from benchmarks.attacks.frame.provider import PRICE
from tests.fakes import completion, reply

POINT = "B.14"
TRIED = (
    "faster service, searches, plugins, sound, predictions, the provider's tools and a new field, on $1 a day"
)
HOLDS = (
    "each is refused by name and none is sent upstream; lists of other models are left out of what is sent"
)

EXTRAS: tuple[dict[str, Any], ...] = (
    {"service_tier": "priority"},
    {"web_search_options": {}},
    {"plugins": [{"id": "web"}]},
    {"provider": {"sort": "throughput"}},
    {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
    {"prediction": {"type": "content", "content": "x" * 10_000}},
    {"tools": [{"type": "web_search"}]},
    {"a_field_of_tomorrow": True},
)
NATIVE: tuple[dict[str, Any], ...] = (
    {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    {"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "dearer"}]},
    {"speed": "fast"},
    {"mcp_servers": [{"type": "url", "name": "x", "url": "https://example.com"}]},
    {"context_management": {"edits": [{"type": "compact_20260112"}]}},
)


async def attack(rig: Rig) -> str:
    upstream = await rig.upstream(reply(completion()))
    claude = {"kind": "anthropic", "base_url": upstream.base_url.removesuffix("/v1")}
    policy = rig.policy(
        upstream,
        backends={"claude": claude},
        models={"c": {"targets": [{"backend": "claude", "model": "claude"}]}},
        prices={"upstream-model": PRICE, "claude": PRICE},
        tenants={"mallory": {"budget": {"usd_per_day": 1.0}}},
    )
    gateway = await rig.gateway(policy)
    ask = {"model": "c", "max_tokens": 16, "messages": [{"role": "user", "content": "Hi"}]}
    answers = [await gateway.chat(MALLORY, **extra) for extra in EXTRAS]
    answers += [await gateway.post(MALLORY, {**ask, **extra}, "/v1/messages") for extra in NATIVE]
    for extra, answer in zip((*EXTRAS, *NATIVE), answers, strict=True):
        must(answer.status_code == 400, f"{extra} got {answer.status_code}")
    must(not upstream.requests, f"{len(upstream.requests)} were sent upstream")
    plain = await gateway.chat(MALLORY, models=["dearer"])
    must(plain.status_code == 200, f"a plain request got {plain.status_code}: {plain.text[:150]}")
    must("models" not in upstream.requests[-1].json(), "others may answer in the model's place")
    return f"{len(answers)} of {len(answers)} refused, none sent; a plain request answered"
