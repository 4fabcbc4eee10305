"""Requests with many choices: do they go round the limit on concurrency?"""

from __future__ import annotations

import asyncio

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must
from tests.fakes import FakeUpstream, Script, completion, reply

POINT = "C.17"
TRIED = "n: 128, and four of n: 8, at a backend with max_concurrency: 8; then four of n: 8 with concurrent_requests: 9"
HOLDS = "no more than 8 answers are computed at once, 128 are refused in clear words, others are served in between"
QUOTA = 9


class Counting(FakeUpstream):
    """Takes a while for each request, and knows how many answers it was asked for meanwhile."""

    asked = 0

    def next_script(self) -> Script:
        choices = self.requests[-1].json().get("n", 1)
        self.asked += choices
        answer = completion()
        one = answer["choices"][0]
        return (0.5, *reply({**answer, "choices": [{**one, "index": index} for index in range(choices)]}))


async def attack(rig: Rig) -> str:
    async with Counting() as server:
        backend = {"kind": "openai", "base_url": server.base_url, "max_concurrency": 8}
        gateway = await rig.gateway(rig.policy(backends={"up": backend}))
        whole = await gateway.chat(MALLORY, n=128)
        must(whole.status_code == 400, f"n: 128 was answered with {whole.status_code}")
        must(whole.json()["error"]["code"] == "too_many_answers", whole.text)
        flood = [asyncio.create_task(gateway.chat(MALLORY, n=8)) for _ in range(4)]
        await server.arrived()
        await asyncio.sleep(0.2)
        must(server.asked <= 8, f"{server.asked} answers at once, where there are 8 places")
        alice = await gateway.chat(ALICE)
        must(alice.status_code == 200, f"alice got {alice.status_code}")
        must(not all(one.done() for one in flood), "alice was served after all of mallory's")
        for answer in await asyncio.gather(*flood):
            must(answer.status_code == 200, f"n: 8 was answered with {answer.status_code}")
        refused = await _quota(rig)
    return f"128 refused, 8 at once, alice's in between; {refused} of 4 refused by the quota"


async def _quota(rig: Rig) -> int:
    """How many of four requests were refused of a tenant who may have nine answers under way."""
    async with Counting() as server:
        tenants = {"mallory": {"quotas": {"concurrent_requests": QUOTA}}}
        gateway = await rig.gateway(rig.policy(server, tenants=tenants))
        never = await gateway.chat(MALLORY, n=QUOTA + 1)
        must(never.status_code == 400, f"n: {QUOTA + 1} was answered with {never.status_code}")
        must(never.json()["error"]["code"] == "too_many_answers", never.text)
        answers = await asyncio.gather(*(gateway.chat(MALLORY, n=8) for _ in range(4)))
        must(server.asked <= QUOTA, f"{server.asked} answers at once, where the quota is {QUOTA}")
        refused = [one for one in answers if one.status_code != 200]
        must(all(one.status_code == 429 for one in refused), str([one.status_code for one in answers]))
        must((await gateway.chat(MALLORY, n=8)).status_code == 200, "its places are not free afterwards")
        return len(refused)
