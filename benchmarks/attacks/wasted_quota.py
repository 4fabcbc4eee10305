"""Large caps and small answers: how much of a quota can be used?"""

from __future__ import annotations

import asyncio
import time

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must
from benchmarks.attacks.frame.provider import Provider

POINT = "B.13"
TRIED = "max_tokens: 4096 by 8 callers, answers of 100, on a quota of 20,000; a follow-up of 50 with 90 of 200 free"
HOLDS = "95 % of the quota or more is used, the follow-up is let in, a cap above the quota is lowered"
QUOTA, CAP, ANSWER, CALLERS = 20_000, 4096, 100, 8
SECONDS = 50.0


async def attack(rig: Rig) -> str:
    async with Provider(lambda asked: ANSWER, silent=0.01) as upstream:
        gateway = await rig.gateway(
            rig.policy(
                upstream,
                models={"small": {"targets": [{"backend": "up", "model": "small"}]}},
                tenants={
                    "mallory": {"quotas": {"tokens_per_minute": QUOTA}},
                    "alice": {"quotas": {"tokens_per_minute": 200}},
                },
            )
        )
        # Learnt from more than one answer, as callers come back.
        began = time.monotonic()
        refused = 0

        async def caller() -> None:
            nonlocal refused
            misses = 0
            while misses < 3 and time.monotonic() < began + SECONDS:
                answer = await gateway.chat(MALLORY, max_tokens=CAP)
                if answer.status_code == 200:
                    misses = 0
                    continue
                refused += 1
                misses += 1
                # A refusal says when to come back: soon, where requests under way hold what is missing.
                await asyncio.sleep(min(float(answer.headers["retry-after"]), 1.0))

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        took = time.monotonic() - began
        used = upstream.tokens("upstream-model")
        share = used / QUOTA
        must(took < SECONDS, f"not used up within {SECONDS:g} s: {share:.0%}")
        must(share >= 0.95, f"{share:.1%} of the quota could be used ({refused} refusals)")
        must(share <= 2.0, f"{used} tokens went through a quota of {QUOTA}")
        first = await gateway.chat(ALICE, "Hi", "small", max_tokens=CAP)
        must(
            first.status_code == 200,
            f"a cap above the quota was answered with {first.status_code}: {first.text}",
        )
        left = int(first.headers["x-ratelimit-remaining-tokens"])
        second = await gateway.chat(ALICE, "And?", "small", max_tokens=50)
        must(second.status_code == 200, f"50 were refused with {left} free: {second.text[:200]}")
    return f"{share:.1%} used in {took:.1f} s; cap of {CAP} on 200 lowered; 50 let in with {left} free"
