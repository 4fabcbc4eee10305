"""Stored responses that stay in a region, continued by a model or a key that does not."""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.attacks.frame import ALICE, Rig, must
from benchmarks.attacks.frame.rig import a_key
from tests.fakes import completion, reply

POINT = "30.10"
TRIED = (
    "responses of a model and of a key that stay in eu, continued by a model in us: by id, items, compaction"
)
HOLDS = "nothing of them reaches the server in us"
BOUND, SECRET = "tg-bound-1", "the merger is on Friday"


async def attack(rig: Rig) -> str:
    eu = await rig.upstream(reply(completion("Noted.")))
    us = await rig.upstream(reply(completion("Noted.")))
    servers = {"eu": eu, "us": us}
    policy = rig.policy(
        eu,
        keys=[
            a_key(ALICE, "alice-1", tenant="alice"),
            a_key(BOUND, "alice-2", tenant="alice", residency=["eu"]),
        ],
        backends={
            name: {"kind": "openai", "base_url": server.base_url, "region": name}
            for name, server in servers.items()
        },
        models={
            "bound": {"targets": [{"backend": "eu", "model": "x"}], "residency": ["eu"]},
            "free": {"targets": [{"backend": "eu", "model": "x"}]},
            "away": {"targets": [{"backend": "us", "model": "y"}]},
        },
    )
    gateway = await rig.gateway(policy)
    tried = 0
    for key, model in ((ALICE, "bound"), (BOUND, "free")):
        first = await gateway.post(key, {"model": model, "input": SECRET}, "/v1/responses")
        must(first.status_code == 200, f"answered with {first.status_code}: {first.text[:200]}")
        told = first.json()
        by_id: dict[str, Any] = {"model": "away", "input": "Go on", "previous_response_id": told["id"]}
        by_item = {"model": "away", "input": [{"type": "item_reference", "id": told["output"][0]["id"]}]}
        for path, body in (
            ("", by_id),
            ("", by_item),
            ("", {**by_id, "background": True}),
            ("", {**by_id, "stream": True}),
            ("/compact", by_id),
        ):
            await gateway.post(ALICE, body, f"/v1/responses{path}")
            await asyncio.sleep(0.3)
            tried += 1
            must(not us.requests, f"{body} was sent to us: {us.requests and us.requests[-1].body[:200]!r}")
    free = await gateway.post(ALICE, {"model": "away", "input": "Hi"}, "/v1/responses")
    must(free.status_code == 200 and len(us.requests) == 1, "what continues nothing is not answered either")
    return f"{tried} ways, none led to us"
