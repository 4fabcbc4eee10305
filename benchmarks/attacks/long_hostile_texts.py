"""Long texts made to be slow to read, before all guards: who waits for them?"""

from __future__ import annotations

import asyncio
import statistics
import time

import orjson

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must

POINT = "A.3"
TRIED = (
    "three texts of mallory's at once, of 2 MB and a dozen hostile parts, before pii, secrets, topics, injection and "
    "toxicity; then 10,000 addresses to be masked"
)
HOLDS = "/healthz answers within 250 ms, alice is served meanwhile, each text is judged"
SIZE = 2_000_000
PARTS = (
    *("a b ", "h a t e ", "a.b c ", "word and another ", "0", "!", "\n", "@", "a@a.", "password ", "中"),
    *("cipher reversed aGVsbG8gd29ybGQgaGVsbG8gd29ybGQ= ", "\\u0041", "1gn0r3 ", "-----BEGIN ", "merger"),
)


async def attack(rig: Rig) -> str:
    fast = {"on": ["input"], "checks": ["fast"], "threshold": 0.99999}
    guards = {
        "pii": {"checks": ["fast"], "action": "mask"},
        "secrets": {"action": "redact"},
        "topics": {"words": ["merger of equals"], "patterns": [r"case-\d+"]},
        "injection": fast,
        "toxicity": fast,
    }
    gateway = await rig.gateway(rig.policy(guards=guards))
    must((await gateway.chat(ALICE, timeout=60)).status_code == 200, "a harmless text was refused")
    each = SIZE // len(PARTS)
    hostile = " ".join((part * each)[:each] for part in PARTS)
    sent = [asyncio.create_task(_sent(gateway.url, text)) for text in [hostile] * 3]
    sent.append(asyncio.create_task(_sent(gateway.url, "ann@example.org " * 10_000)))
    waits: list[float] = []
    answers: list[float] = []
    while not all(task.done() for task in sent):
        began = time.monotonic()
        must(await gateway.is_alive(20), "the worker answers nobody any more")
        waits.append(time.monotonic() - began)
        answer = await gateway.chat(ALICE, "My number is 12.", timeout=60)
        must(answer.status_code == 200, f"alice got {answer.status_code}: {answer.text}")
        answers.append(time.monotonic() - began - waits[-1])
        await asyncio.sleep(0.02)
    told = {task.result() for task in sent}
    must(told <= {"200", "403"}, f"mallory was told {', '.join(sorted(told))}")
    must(len(answers) > 10, "alice was served only afterwards")
    usual, most = statistics.median(waits), max(waits)
    must(usual < 0.25, f"/healthz took {usual * 1000:.0f} ms")
    return (
        f"{len(answers)} of alice's served meanwhile in {statistics.median(answers) * 1000:.0f} ms; "
        f"/healthz in {usual * 1000:.0f} ms, at most {most * 1000:.0f} ms"
    )


async def _sent(url: str, text: str) -> str:
    """The status. From another process: to send it takes time of this one's loop."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    sender = await asyncio.create_subprocess_exec(
        *("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", "--data-binary", "@-", "-H"),
        *(f"authorization: Bearer {MALLORY}", f"{url}/v1/chat/completions"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await sender.communicate(orjson.dumps(body))
    return told.decode()
