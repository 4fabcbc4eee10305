"""Failures that a policy scripts, and a cap that only Anthropic wants: is more paid for than anybody computes?"""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.attacks.frame import MALLORY, Rig, must
from benchmarks.attacks.frame.provider import spent
from tests.fakes import reply

POINT = "30.11"
TRIED = "10 answers of a `kind: fake` backend with status 503; a chat without a cap to Anthropic, `max_output: 1024`"
HOLDS = "the failures cost nothing; Anthropic is asked for no more tokens than the model says"
MOST = 1024
ANSWER: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "content": [{"type": "text", "text": "Hello"}],
    "usage": {"input_tokens": 7, "output_tokens": 3},
}


async def attack(rig: Rig) -> str:
    upstream = await rig.upstream(reply(ANSWER))
    gateway = await rig.gateway(
        rig.policy(
            backends={
                "broken": {"kind": "fake", "script": [{"status": 503}]},
                "claude": {
                    "kind": "anthropic",
                    "base_url": upstream.base_url.removesuffix("/v1"),
                    "api_key": "sk-1",
                },
            },
            models={
                "broken": {"targets": [{"backend": "broken", "model": "scripted"}]},
                "claude": {"targets": [{"backend": "claude", "model": "claude"}], "max_output": MOST},
            },
            prices={name: {"input": 100.0, "output": 100.0} for name in ("scripted", "claude")},
            tenants={"mallory": {"budget": {"usd_per_day": 1.0}}},
        )
    )
    for _ in range(10):
        answer = await gateway.chat(MALLORY, "word " * 500, "broken")
        must(
            answer.status_code >= 500,
            f"the scripted failure came as {answer.status_code}: {answer.text[:150]}",
        )
    answer = await gateway.chat(MALLORY, model="claude")
    must(answer.status_code == 200, f"{answer.status_code}: {answer.text[:150]}")
    asked = upstream.requests[-1].json()["max_tokens"]
    must(asked <= MOST, f"Anthropic was asked for {asked} tokens of a model that says {MOST}")
    await asyncio.sleep(0.5)
    rows = spent(gateway)
    must(bool(rows), "the ledger is empty")
    free = [row["cost_nanodollars"] for row in rows if row["model"] == "broken"]
    must(not any(free), f"scripted failures cost {max(free, default=0) / 1e9:.6f} dollars each")
    return f"{len(free)} failures were free; Anthropic was asked for {asked} tokens"
