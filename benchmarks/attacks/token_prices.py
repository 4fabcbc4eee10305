"""A model with a price for tokens, asked for what is billed by minutes, characters or searches: is it free?"""

from __future__ import annotations

from typing import Any

import httpx

from benchmarks.attacks.frame import MALLORY, Gateway, Rig, must
from benchmarks.attacks.frame.provider import PRICE, spent_by
from tests.fakes import reply
from tests.gateway.metering.files import wav

POINT = "B.14"
TRIED = (
    "speech, ranks, pictures, a transcription and a translation on $1 a day, of models with a price for tokens: as it "
    "is, and of a provider that bills nothing else (only_tokens) and tells no usage"
)
HOLDS = "the former are refused (403, model_has_no_price) and nothing is sent; the latter are charged what was held"
WAVE = wav(60.0)
BODIES: dict[str, dict[str, Any]] = {
    "/v1/audio/speech": {"input": "Hello there. " * 8, "voice": "a"},
    "/v1/rerank": {"query": "who", "documents": ["a document", "and another"]},
    "/v1/images/generations": {"prompt": "a cat"},
}
FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations")


async def attack(rig: Rig) -> str:
    upstream = await rig.upstream(reply({"text": "Hello", "results": [], "data": [{}]}))
    gateway = await rig.gateway(
        rig.policy(
            upstream,
            prices={"tokens": PRICE, "only": {**PRICE, "only_tokens": True}},
            models={name: {"targets": [{"backend": "up", "model": name}]} for name in ("tokens", "only")},
            tenants={"mallory": {"budget": {"usd_per_day": 1.0}}},
        )
    )
    for path in (*BODIES, *FORMS):
        answer = await _ask(gateway, path, "tokens")
        must(answer.status_code == 403, f"{path} got {answer.status_code}: {answer.text[:100]}")
        must(answer.json()["error"]["code"] == "model_has_no_price", f"{path}: {answer.text[:100]}")
    must(not upstream.requests, f"{len(upstream.requests)} were sent")
    told = []
    for path in (*BODIES, *FORMS):
        answer = await _ask(gateway, path, "only")
        must(answer.status_code == 200, f"{path} got {answer.status_code}: {answer.text[:100]}")
        row = await spent_by(gateway, answer.headers["x-request-id"])
        must(row["cost_nanodollars"] > 0, f"{path} was free")
        must(bool(row["estimated"]), f"{path} is said to be the provider's count")
        told.append(f"{path} ${row['cost_nanodollars'] / 1e9:.6f}")
    return "5 of 5 refused; charged: " + ", ".join(told)


async def _ask(gateway: Gateway, path: str, model: str) -> httpx.Response:
    if path in BODIES:
        return await gateway.post(MALLORY, {"model": model, **BODIES[path]}, path)
    return await gateway.http.post(
        path,
        data={"model": model},
        files={"file": ("a.wav", WAVE)},
        headers={"authorization": f"Bearer {MALLORY}"},
    )
