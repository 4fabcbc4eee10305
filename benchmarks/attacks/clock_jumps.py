"""The machine's clock is set: do spent budgets come back, does anything stand still?"""

from __future__ import annotations

import asyncio
import glob
import re
import time
from email.utils import parsedate_to_datetime

import httpx

from benchmarks.attacks.frame import ALICE, MALLORY, Gateway, Rig, must, skip
from tests.fakes import answer_events, completion, reply, stream

POINT = "30.14"
TRIED = "a spent day's budget, a spent minute, a stream under way; the clock back an hour and a day, then on"
HOLDS = "what was spent stays spent, waits stay short, streams and other callers go on"
LIBRARY = "/usr/lib/*/faketime/libfaketime.so.1"
WORDS = ("one", "two", "three", "four", "five", "six")
JUMPS = ("-1h", "-1d", "+1h", "-1d")


async def attack(rig: Rig) -> str:
    library = next(iter(glob.glob(LIBRARY)), None)
    if library is None:
        skip("needs libfaketime (Debian: faketime)")
    slow = [step for event in answer_events(*WORDS) for step in (event, 1.0)]
    upstream = await rig.upstream(reply(completion()))
    offset = rig.folder / "offset"
    offset.write_text("+0")
    gateway = await rig.gateway(
        rig.policy(
            upstream,
            prices={"upstream-model": {"input": 1000.0, "output": 1000.0}},
            tenants={
                "mallory": {"budget": {"usd_per_day": 0.08}},
                "alice": {"quotas": {"requests_per_minute": 40}},
            },
        ),
        LD_PRELOAD=library,
        FAKETIME_TIMESTAMP_FILE=str(offset),
        FAKETIME_DONT_FAKE_MONOTONIC="1",
        FAKETIME_NO_CACHE="1",
    )
    spent = 0
    while (await gateway.chat(MALLORY, max_tokens=10)).status_code == 200:
        spent += 1
        must(spent < 50, "the budget is never spent")
    let_in = 0
    for jump in JUMPS:
        upstream.scripts = [stream(*slow)]
        under_way = asyncio.create_task(gateway.chat(ALICE, stream=True))
        await asyncio.sleep(1)
        upstream.scripts = [reply(completion())]
        offset.write_text(jump)
        await _jumped(gateway, jump)
        let_in += await _let_in(gateway)
        other = await gateway.chat(ALICE)
        must(
            other.status_code == 200,
            f"after {jump} another caller got {other.status_code}: {other.text[:200]}",
        )
        answer = await under_way
        must("[DONE]" in answer.text and "six" in answer.text, f"a stream broke at {jump}")
    must(let_in == 0, f"{let_in} requests were let in on a spent budget")
    minute = [await gateway.chat(ALICE) for _ in range(45)]
    refused = next((one for one in minute if one.status_code == 429), None)
    must(refused is not None, "a spent minute's requests were let in")
    wait = int(refused.headers["retry-after"]) if refused is not None else 0
    must(wait <= 60, f"a minute's limit asks to wait {wait} s")
    wrong = [line for line in gateway.lines if re.search(r"\b(ERROR|Traceback)\b", line)]
    must(not wrong, f"it logged {wrong[:1]}")
    return (
        f"{spent} let in until the budget was spent, none after {len(JUMPS)} jumps; waits of {wait} s at most"
    )


async def _let_in(gateway: Gateway) -> int:
    answers = [await gateway.chat(MALLORY, max_tokens=10) for _ in range(5)]
    return sum(answer.status_code == 200 for answer in answers)


async def _jumped(gateway: Gateway, jump: str) -> None:
    """Until its answers tell the new time, which they do a second late: else nothing would be tried."""
    wanted = int(jump[:-1]) * {"h": 3600, "d": 86400}[jump[-1]]
    deadline = time.monotonic() + 10
    while abs((told := _offset(await gateway.http.get("/healthz"))) - wanted) > 60:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the clock is {told:+.0f} s off, not {jump}")
        await asyncio.sleep(0.1)


def _offset(answer: httpx.Response) -> float:
    """Seconds by which its clock is ahead of this process's."""
    return parsedate_to_datetime(answer.headers["date"]).timestamp() - time.time()
