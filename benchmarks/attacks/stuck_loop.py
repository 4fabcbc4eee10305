"""The event loop of one of two workers stands still for ever: is it noticed, and are the others served?"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress

import httpx

from benchmarks.attacks.frame import ALICE, Rig, must
from benchmarks.attacks.frame.gateway import ROOT

POINT = "A.6"
TRIED = "one of two workers made to compute without end (watchdog: 3 s), while a tenant goes on asking"
HOLDS = "it is replaced with its stack in the log, and all requests meanwhile are answered"
HANDLER = """
import signal, sys
MARK = {mark!r}
if "gateway.process.worker" in sys.orig_argv:
    def stand_still(*_):
        open(MARK, "w").close()
        while True:
            pass
    signal.signal(signal.SIGRTMIN, stand_still)
"""


async def attack(rig: Rig) -> str:
    inside = rig.folder / "inside"
    mark = inside / "stands-still"
    inside.mkdir()
    (inside / "sitecustomize.py").write_text(HANDLER.format(mark=str(mark)))
    path = os.pathsep.join((str(inside), str(ROOT)))
    gateway = await rig.gateway(rig.policy(), "--workers", "2", PYTHONPATH=path, TOLLGATE_WATCHDOG="3")
    victim, _ = sorted(gateway.workers)
    await asyncio.sleep(2)  # the watchdog begins with the first beat
    os.kill(victim, signal.SIGRTMIN)
    async with asyncio.timeout(60):
        while not mark.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    began = time.monotonic()
    answered = failed = 0
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    while victim in gateway.workers:
        must(time.monotonic() < began + 60, "it still stands still after a minute")
        # Each over a connection of its own: those that the worker has are lost with it.
        with suppress(httpx.TransportError):
            async with httpx.AsyncClient(base_url=gateway.url, trust_env=False, timeout=10) as gateway.http:
                answer = await gateway.post(ALICE, body)
            answered += answer.status_code == 200
            failed += answer.status_code != 200
            continue
        failed += 1
    took = time.monotonic() - began
    must(not failed, f"{failed} of {failed + answered} were not answered")
    must(answered > 0, "nobody asked meanwhile")
    must(any("stand_still" in line for line in gateway.lines), "its stack is not in the log")
    async with asyncio.timeout(60):
        while len(gateway.workers) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return f"replaced after {took:.1f} s, its stack logged, {answered} of {answered} answered meanwhile"
