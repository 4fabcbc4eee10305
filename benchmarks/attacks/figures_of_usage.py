"""A server's figures of usage that cannot be: do they reach the ledger, or make an answer free?"""

from __future__ import annotations

import asyncio
from typing import Any

from benchmarks.attacks.frame import MALLORY, Rig, must
from benchmarks.attacks.frame.provider import PRICE, spent
from tests.fakes import DONE, completion, delta, reply, sse, stream, usage_event

POINT = "30.14"
TRIED = (
    "answers, whole and streamed, with 10 tokens of prompt of which 10,000,000 are cached, or fewer than none"
)
HOLDS = "the ledger has no more cached tokens than the prompt has, and the answer is paid for"
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
FIGURES = (10**7, 2**62, -5)


async def attack(rig: Rig) -> str:
    scripts = []
    for cached in FIGURES:
        usage: dict[str, Any] = {**USAGE, "prompt_tokens_details": {"cached_tokens": cached}}
        events = [delta("", role="assistant"), delta("Hello"), delta(finish="stop"), usage_event(**usage)]
        scripts += [reply(completion(usage=usage)), stream(*map(sse, events), DONE)]
    upstream = await rig.upstream(*scripts)
    price = {**PRICE, "cached_input": 0.1}
    gateway = await rig.gateway(rig.policy(upstream, prices={"upstream-model": price}))
    for _ in FIGURES:
        for streams in (False, True):
            answer = await gateway.chat(MALLORY, stream=streams, max_tokens=20)
            must(answer.status_code == 200, f"{answer.status_code}: {answer.text[:150]}")
    await asyncio.sleep(1)
    async with asyncio.timeout(30):
        while len(rows := spent(gateway)) < len(scripts):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    least = PRICE["output"] * 1000  # figures that are none are not believed, and the text is counted
    for row in rows:
        cached, prompt, cost = row["cached_tokens"], row["prompt_tokens"], row["cost_nanodollars"]
        must(0 <= cached <= prompt, f"the ledger has {cached} cached tokens of a prompt of {prompt}")
        must(cost >= least, f"an answer cost {cost} nanodollars, not {least:.0f} or more")
    return f"cached tokens of {len(rows)} answers: {sorted({row['cached_tokens'] for row in rows})}"
