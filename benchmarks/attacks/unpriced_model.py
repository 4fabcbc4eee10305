"""A model that nobody gave a price, asked by who has a budget; and an upstream that claims 2^62 tokens."""

from __future__ import annotations

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must
from tests.fakes import completion, reply

POINT = "B.14"
TRIED = (
    "20 requests under a budget of $1 to a model without a price; and usage of 2^62 tokens from an upstream"
)
HOLDS = "none is free, and what nobody can have used is not billed"


async def attack(rig: Rig) -> str:
    answer = completion()
    answer["usage"] = {"prompt_tokens": 2**62, "completion_tokens": 2**62, "total_tokens": 2**62}
    upstream = await rig.upstream(reply(answer))
    gateway = await rig.gateway(
        rig.policy(upstream, tenants={"mallory": {"budget": {"usd_per_month": 1.0}}}),
    )
    answers = [await gateway.chat(MALLORY) for _ in range(20)]
    let_in = sum(one.status_code == 200 for one in answers)
    must(let_in == 0, f"{let_in} of 20 were free")
    neighbour = await gateway.chat(ALICE)
    must(
        neighbour.status_code == 200, f"who has no budget got {neighbour.status_code}: {neighbour.text[:100]}"
    )
    told = neighbour.json().get("usage") or {}
    must(told.get("prompt_tokens", 0) < 1000, f"the caller was told of {told}")
    return "20 of 20 refused (model_has_no_price); 2^62 tokens not believed"
