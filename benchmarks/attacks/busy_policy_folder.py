"""A key is revoked while somebody writes another file of the folder again and again."""

from __future__ import annotations

import asyncio
import os
import time
from itertools import count

from benchmarks.attacks.frame import ALICE, MALLORY, Gateway, Rig, must
from benchmarks.attacks.frame.rig import a_key

POINT = "D.25"
TRIED = "a key taken out of keys.yaml while another file of the policy is replaced every 120 ms"
HOLDS = "it is refused within a second or so, and a new key is let in"


async def attack(rig: Rig) -> str:
    policy = rig.policy()
    keys = policy.pop("keys")
    gateway = await rig.gateway({**policy, "keys": [keys[1]]})
    gateway.write({"keys": [keys[0]]}, "keys.yaml")
    await until(gateway, MALLORY, 200)

    async def write() -> None:
        for number in count():
            gateway.write(
                {"prices": {"upstream-model": {"input": 1 + number % 7, "output": 2}}}, "prices.yaml"
            )
            await asyncio.sleep(0.12)

    writing = asyncio.create_task(write())
    try:
        await asyncio.sleep(1)
        gateway.write({"keys": [a_key("tg-new", "new")]}, "keys.yaml")
        revoked = await until(gateway, MALLORY, 401)
        made = await until(gateway, "tg-new", 200)
        must((await gateway.chat(ALICE)).status_code == 200, "a key of another file was refused")
    finally:
        writing.cancel()
    # As generous as the machine is busy: without each file settling by itself it never ends.
    must(revoked < 1 + os.getloadavg()[0], f"it still answered 200 after {revoked:.1f} s")
    return f"refused after {revoked:.2f} s; the new key let in after {revoked + made:.2f} s"


async def until(gateway: Gateway, key: str, status: int, seconds: float = 15.0) -> float:
    """Seconds until requests with ``key`` are answered so."""
    began = time.monotonic()
    while (answer := await gateway.chat(key)).status_code != status:
        must(
            time.monotonic() - began < seconds,
            f"'{key}' still got {answer.status_code}, not {status}, after {seconds:.0f} s",
        )
        await asyncio.sleep(0.02)
    return time.monotonic() - began
