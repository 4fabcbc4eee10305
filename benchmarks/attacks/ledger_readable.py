"""Another user of the machine looks for what the gateway writes down: who asked, what it cost, keys."""

from __future__ import annotations

import asyncio

from benchmarks.attacks.frame import ALICE, Rig, must

POINT = "D.24"
TRIED = (
    "reading the state folder as another user, after requests, with a ledger from before that all could read"
)
HOLDS = "no file in it has a right for group or others"


async def attack(rig: Rig) -> str:
    gateway = await rig.gateway(rig.policy())
    must((await gateway.chat(ALICE)).status_code == 200, "the gateway does not answer")
    async with asyncio.timeout(30):
        while not (gateway.state / "ledger.sqlite-wal").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await gateway.stop()
    for path in gateway.state.iterdir():
        path.chmod(0o644)  # as older versions left them
    await gateway.start()
    must((await gateway.chat(ALICE)).status_code == 200, "the gateway does not answer")
    await asyncio.sleep(1)
    files = sorted(path for path in gateway.state.rglob("*") if path.is_file())
    loose = [f"{path.name} {path.stat().st_mode & 0o777:o}" for path in files if path.stat().st_mode & 0o077]
    must(not loose, f"others may read {', '.join(loose)}")
    return f"0600: {', '.join(path.name for path in files)}"
