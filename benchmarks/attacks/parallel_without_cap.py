"""Sixty short answers, then a thousand long ones at once that declare no cap: is the budget kept?"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must
from benchmarks.attacks.frame.provider import PRICE, Provider
from benchmarks.attacks.frame.rig import a_key

POINT = "B.7"
TRIED = (
    "60 answers of one token; then 1,000 requests without a cap at once, 4,000 tokens long: on $1 a day; 300 on 10,000 "
    "tokens a minute; 300 on as many with strict: true"
)
HOLDS = "by the upstream's own books: no more than $1, no more than twice 10,000, no more than 10,000"
LEARNT, LONG = 60, 4000
WAVE, FEWER = 1000, 300
DOLLAR, QUOTA = 10**9, 10_000
STRICT = "tg-strict-1"


async def attack(rig: Rig) -> str:
    async with Provider(lambda asked: 1 if asked["messages"][-1]["content"] == "Hi" else LONG) as upstream:
        prices = dict.fromkeys(("upstream-model", "by-minute", "by-minute-strictly"), PRICE)
        quotas = {"tokens_per_minute": QUOTA}
        policy = rig.policy(
            upstream,
            models={
                name: {"targets": [{"backend": "up", "model": name}]}
                for name in prices
                if name != "upstream-model"
            },
            prices=prices,
            tenants={
                "mallory": {"budget": {"usd_per_day": 1.0}},
                "alice": {"quotas": quotas},
                "strict": {"quotas": {**quotas, "strict": True}},
            },
        )
        policy["keys"].append(a_key(STRICT, "strict-1", tenant="strict"))
        gateway = await rig.gateway(policy)

        async def wave(key: str, model: str, count: int) -> Counter[int]:
            await asyncio.gather(*(gateway.chat(key, model=model) for _ in range(LEARNT)))
            long: list[Any] = await asyncio.gather(
                *(gateway.chat(key, f"{number}: at length", model) for number in range(count))
            )
            return Counter(answer.status_code for answer in long)

        told = await wave(MALLORY, "m", WAVE)
        dollars = upstream.nanodollars("upstream-model")
        must(dollars <= DOLLAR, f"${dollars / DOLLAR:.2f} were spent of $1 ({told[200]} of {WAVE} let in)")
        must(dollars > DOLLAR / 2, f"no more than ${dollars / DOLLAR:.2f} could be spent ({dict(told)})")
        await wave(ALICE, "by-minute", FEWER)
        loose = upstream.tokens("by-minute")
        must(loose <= 2 * QUOTA, f"{loose} tokens went through a quota of {QUOTA}")
        await wave(STRICT, "by-minute-strictly", FEWER)
        strict = upstream.tokens("by-minute-strictly")
        must(strict <= QUOTA, f"{strict} tokens went through a strict quota of {QUOTA}")
        must(set(told) <= {200, 429}, f"answers were {dict(told)}")
    return f"${dollars / DOLLAR:.2f} spent; {loose} tokens; strictly: {strict} tokens"
