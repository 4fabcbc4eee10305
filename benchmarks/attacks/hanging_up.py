"""Who hangs up, sets a deadline or waits no longer than ``total``: is what the provider bills charged?"""

from __future__ import annotations

import asyncio

from benchmarks.attacks.frame import MALLORY, Gateway, Rig, must
from benchmarks.attacks.frame.provider import PRICE, Provider, spent

POINT = "B.8"
TRIED = (
    "20 requests each, streamed and not, that end by a caller's hanging up, a deadline of 2 s, a total of 2 s"
)
HOLDS = "all that were sent upstream are charged, together no less than it bills"
EACH, TOKENS = 20, 200


async def attack(rig: Rig) -> str:
    async with Provider(lambda asked: TOKENS, silent=30) as upstream:
        target = {"targets": [{"backend": "up", "model": "upstream-model"}]}
        # Time limits are failures too: after some of them nothing would be sent.
        patient = {"kind": "openai", "base_url": upstream.base_url, "breaker": {"failures": 10**6}}
        gateway = await rig.gateway(
            rig.policy(
                backends={"up": patient},
                models={"limited": {**target, "timeouts": {"total": "2s"}, "retry": {"attempts": 1}}},
                prices={"upstream-model": PRICE},
                tenants={"mallory": {"budget": {"usd_per_day": 100.0}}},
            )
        )
        ways = {"hung up": _hang_up, "deadline": _deadline, "total": _total}
        free: list[str] = []
        charged = asked = 0
        for name, way in ways.items():
            for streams in (False, True):
                before = len(upstream.requests)
                requests = [asyncio.create_task(way(gateway, streams)) for _ in range(EACH)]
                if way is _hang_up:
                    await upstream.arrived(before + EACH)
                    await asyncio.sleep(0.2)
                    for request in requests:
                        request.cancel()
                await asyncio.gather(*requests, return_exceptions=True)
                asked += EACH
                costs = await _costs(gateway, asked)
                # On a busy machine some may meet their deadline before they are sent.
                sent = len(upstream.requests) - before
                must(sent > 0, f"{name}: none was sent")
                paid = sum(cost > 0 for cost in costs[-EACH:])
                if paid < sent:
                    free.append(f"{sent - paid} of {sent} {'streamed' if streams else 'whole'} by {name}")
                charged += paid
        total = sum(costs)
        bills = upstream.nanodollars()
    must(not free, f"free were {', '.join(free)}")
    must(total >= bills * 0.9, f"charged ${total / 1e9:.4f} where the upstream bills ${bills / 1e9:.4f}")
    return f"{charged} of {len(upstream.requests)} charged: ${total / 1e9:.3f}, the upstream bills ${bills / 1e9:.3f}"


async def _costs(gateway: Gateway, count: int) -> list[int]:
    """Nanodollars of each request, in the order in which they came, once there are as many."""
    costs: dict[str, int] = {}
    async with asyncio.timeout(30):
        while len(costs) < count:
            await asyncio.sleep(0.5)
            costs = {}
            for row in sorted(spent(gateway), key=lambda row: row["created"]):
                costs[row["request_id"]] = costs.get(row["request_id"], 0) + row["cost_nanodollars"]
    return list(costs.values())


async def _hang_up(gateway: Gateway, streams: bool) -> None:
    await gateway.chat(MALLORY, "At length", stream=streams, max_tokens=TOKENS)


async def _deadline(gateway: Gateway, streams: bool) -> None:
    messages = [{"role": "user", "content": "At length"}]
    body = {"model": "m", "stream": streams, "messages": messages, "max_tokens": TOKENS}
    await gateway.post(MALLORY, body, headers={"x-tollgate-deadline": "2s"})


async def _total(gateway: Gateway, streams: bool) -> None:
    await gateway.chat(MALLORY, "At length", "limited", stream=streams, max_tokens=TOKENS)
