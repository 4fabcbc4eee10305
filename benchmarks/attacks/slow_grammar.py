"""Grammars that take the engine long: an ambiguous one, and megabytes of choices. Does a neighbour wait?"""

from __future__ import annotations

import asyncio
import time

from benchmarks.attacks.frame import ALICE, MALLORY, Gateway, Rig, must

POINT = "A.5"
TRIED = 'guided_grammar (a: a a a | a a | "~") four times, then guided_choice of 5.9 MB, beside a neighbour\'s answers'
HOLDS = "the neighbour keeps a fifth of the speed that it has alone"
AMBIGUOUS = 'start: a\na: a a a | a a | "~"\n'
TOKENS = 48


async def attack(rig: Rig) -> str:
    policy = rig.policy(
        backends={"engine": rig.demo_engine()},
        models={"demo": {"targets": [{"backend": "engine", "model": "demo"}]}},
    )
    gateway = await rig.gateway(policy)
    await _speed(gateway)
    alone = min([await _speed(gateway) for _ in range(3)])
    told = [f"alone {alone:.0f} tokens/s"]
    choices = [f"{number:06}" + "x" * 110 for number in range(50_000)]
    for name, more, count in (
        ("ambiguous", {"guided_grammar": AMBIGUOUS, "max_tokens": 200}, 4),
        ("choices", {"guided_choice": choices, "max_tokens": 50}, 1),
    ):
        flood = [asyncio.create_task(gateway.chat(MALLORY, "Go on.", "demo", **more)) for _ in range(count)]
        await asyncio.sleep(0.5)
        speeds: list[float] = []
        while len(speeds) < 3 and (not speeds or not all(one.done() for one in flood)):
            speeds.append(await _speed(gateway))
        for one in flood:
            one.cancel()
        ends = [
            "no answer" if isinstance(end, BaseException) else str(end.status_code)
            for end in await asyncio.gather(*flood, return_exceptions=True)
        ]
        must(min(speeds) > alone / 5, f"{name}: {min(speeds):.1f} tokens/s beside it, {alone:.1f} alone")
        told.append(f"beside {name} {min(speeds):.0f} (they got {', '.join(sorted(set(ends)))})")
    return "; ".join(told)


async def _speed(gateway: Gateway) -> float:
    """Tokens a second of one answer of alice's, from sending to its end."""
    began = time.monotonic()
    more = {"max_tokens": TOKENS, "ignore_eos": True, "seed": 1}
    answer = await gateway.chat(ALICE, "Tell me a story.", "demo", **more)
    must(answer.status_code == 200, f"the neighbour got {answer.status_code}: {answer.text[:150]}")
    tokens: int = answer.json()["usage"]["completion_tokens"]
    return tokens / (time.monotonic() - began)
