"""Requests that their server fails on, from one tenant: are the others still answered?"""

from __future__ import annotations

import asyncio

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must
from tests.fakes import Action, FakeUpstream, Script, completion, reply

POINT = "C.16"
TRIED = (
    "12 requests of mallory's on which the server fails, and 12 for which it has no time; then 50 of alice's"
)
HOLDS = "all of alice's are answered, and so is a fallback to another model of the same backend"


class Choking(FakeUpstream):
    """Fails on what holds ``poison``, and never answers what holds ``slow``."""

    def next_script(self) -> Script:
        said = str(self.requests[-1].json()["messages"])
        if "poison" in said:
            return reply({"error": {"message": "something came loose"}}, status=500)
        return (Action.HANG,) if "slow" in said else reply(completion())


async def attack(rig: Rig) -> str:
    async with Choking() as server:
        target = {"backend": "up", "model": "a"}
        gateway = await rig.gateway(
            rig.policy(
                backends={"up": {"kind": "openai", "base_url": server.base_url}},
                models={
                    "m": {
                        "targets": [target],
                        "timeouts": {"first_token": "1s", "idle": "1s", "total": "2s"},
                    },
                    "n": {"targets": [{"backend": "up", "model": "b"}]},
                    "with-fallback": {"targets": [target], "fallbacks": ["n"]},
                },
            )
        )
        for word in ("poison", "slow"):
            await asyncio.gather(*(gateway.chat(MALLORY, word) for _ in range(12)))
            lost = [(await gateway.chat(ALICE)).status_code for _ in range(50)]
            refused = sum(status != 200 for status in lost)
            must(not refused, f"after {word}: {refused} of 50 of alice's were refused")
            fallen = await gateway.chat(MALLORY, model="with-fallback")
            must(
                fallen.status_code == 200, f"after {word}: the fallback was not asked ({fallen.status_code})"
            )
        return "100 of 100 of alice's were answered"
