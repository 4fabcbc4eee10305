"""A guard's pattern that takes time to the fourth power of the text, and texts that make it: who waits for it?"""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must

POINT = "A.3"
TRIED = r"topics with the pattern \d+\d+\d+x and timeout: 1s; four requests of mallory's with 4,000 digits"
HOLDS = "/healthz answers within 250 ms, the timeout is told, and alice is answered meanwhile"


async def attack(rig: Rig) -> str:
    guard = {"patterns": [r"\d+\d+\d+x"], "timeout": "1s"}
    gateway = await rig.gateway(rig.policy(guards={"topics": guard}))
    first = await gateway.chat(ALICE, timeout=60)
    must(first.status_code == 200, f"a harmless text got {first.status_code}")
    sent = [asyncio.create_task(gateway.chat(MALLORY, "7" * 4000, timeout=120)) for _ in range(4)]
    waits, answers, served = [], [], 0
    while not all(task.done() for task in sent):
        began = time.monotonic()
        must(await gateway.is_alive(20), "the worker answers nobody any more")
        waits.append(time.monotonic() - began)
        asked = time.monotonic()
        answer = await gateway.chat(ALICE, "My number is 12.", timeout=60)
        answers.append(time.monotonic() - asked)
        must(answer.status_code == 200, f"alice got {answer.status_code}: {answer.text}")
        served += not all(task.done() for task in sent)
        await asyncio.sleep(0.02)
    for task in sent:
        told = task.result()
        must(
            told.status_code == 503 and "no verdict within 1 s" in told.text, f"mallory was told {told.text}"
        )
    usual, most = statistics.median(waits), max(waits)
    must(served > 0, "alice was served only afterwards")
    must(usual < 0.25, f"/healthz took {usual * 1000:.0f} ms")
    return (
        f"{served} of alice's served meanwhile in {statistics.median(answers) * 1000:.0f} ms; "
        f"/healthz in {usual * 1000:.0f} ms, at most {most * 1000:.0f} ms"
    )
