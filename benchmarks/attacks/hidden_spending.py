"""What is paid for beside the answers: does the ledger have all of it, once, under its own model?"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from benchmarks.attacks.frame import MALLORY, Rig, must
from benchmarks.attacks.frame.provider import PRICE, Provider, spent
from tests.fakes import Script

POINT = "B.10"
TRIED = "30 requests to a cascade whose first step declines, with a shadow of the second, and a judge of each answer"
HOLDS = (
    "tokens and dollars of each model in the ledger are those of the upstream's books; quotas count the steps"
)
ROUNDS = 30
MODELS = ("small", "large", "copy", "judge")


class Declining(Provider):
    """Its model ``small`` declines, ``judge`` finds nothing, all in 50 tokens."""

    def next_script(self) -> Script:
        model = self.requests[-1].json()["model"]
        self.text = {"small": "I'm sorry, but I cannot help with that. ", "judge": "safe\n"}.get(
            model, "abc "
        )
        return super().next_script()


async def attack(rig: Rig) -> str:
    async with Declining(lambda asked: 1 if asked["model"] in ("small", "judge") else 50) as upstream:
        policy = rig.policy(
            upstream,
            models={
                **{name: {"targets": [{"backend": "up", "model": name}]} for name in MODELS},
                "auto": {"cascade": [{"model": "small"}, {"model": "large"}]},
            },
            prices=dict.fromkeys(MODELS, PRICE),
            tenants={"mallory": {"quotas": {"tokens_per_minute": 10**6}, "budget": {"usd_per_day": 100.0}}},
            guards={"toxicity": {"on": ["output"], "action": "block", "checks": ["fast"], "judge": "judge"}},
        )
        policy["models"]["large"]["shadow"] = {"model": "copy"}
        gateway = await rig.gateway(policy)
        answers = [await gateway.chat(MALLORY, f"Question {number}?", "auto") for number in range(ROUNDS)]
        statuses = Counter(answer.status_code for answer in answers)
        must(statuses == {200: ROUNDS}, f"answers were {dict(statuses)}: {answers[0].text[:200]}")
        await asyncio.sleep(2)
        rows = spent(gateway)
        left = int(answers[-1].headers["x-ratelimit-remaining-tokens"])
    models = [name for name in MODELS if upstream.prompts[name]]
    must(set(models) >= {"small", "large", "copy", "judge"}, f"only {models} were asked")
    for name in models:
        mine = [row for row in rows if row["target_model"] == name]
        tokens = sum(row["prompt_tokens"] + row["completion_tokens"] for row in mine)
        must(
            tokens == upstream.tokens(name),
            f"{name}: {tokens} tokens in the ledger, {upstream.tokens(name)} upstream",
        )
        cost, bill = _cost(mine), upstream.nanodollars(name)
        must(cost == bill, f"{name}: {cost} nanodollars in the ledger, {bill} upstream")
    purposes = Counter(row["purpose"] for row in rows)
    must(set(purposes) >= {"answer", "step", "shadow", "judge"}, f"purposes are {dict(purposes)}")
    own = upstream.tokens("small") + upstream.tokens("large")
    must(10**6 - left >= own * 0.95, f"the quota counted {10**6 - left} of {own} tokens")
    told = ", ".join(f"{count} {name}" for name, count in sorted(purposes.items()))
    return f"{told}: ${_cost(rows) / 1e9:.4f} in the ledger, as upstream"


def _cost(rows: list[dict[str, Any]]) -> int:
    return sum(row["cost_nanodollars"] for row in rows)
