"""A temporary folder without room, and two workers that share figures through files in it."""

from __future__ import annotations

import asyncio
import shutil
from asyncio.subprocess import DEVNULL

from benchmarks.attacks.frame import ALICE, Rig, must, skip

POINT = "A.6"
TRIED = "workers: 2 on a temporary folder that is full from the start, and one that fills up while they serve"
HOLDS = "every request is answered, and no worker dies"
ASKED = 40


async def attack(rig: Rig) -> str:
    folder = rig.folder / "tmp"
    folder.mkdir()
    mounting = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tollgate", str(folder)]
    if shutil.which("unshare") is None or await _run(*mounting):
        skip("no file systems can be mounted here")
    for filled in (True, False):
        fill = f"head -c 4m /dev/zero > '{folder}/fill' 2>/dev/null || true"
        script = f"mount -t tmpfs -o size=3m tollgate '{folder}' && {{ {fill if filled else 'true'}; }} && exec \"$@\""
        gateway = await rig.gateway(
            rig.policy(),
            *("--workers", "2"),
            wrapped=["unshare", "-Urm", "sh", "-c", script, "sh"],
            TMPDIR=str(folder),
        )
        if not filled:
            # In its file system, which is not ours.
            inside = ["nsenter", f"--target={gateway.pid}", "--user", "--mount", "--preserve-credentials"]
            await _run(*inside, "sh", "-c", fill)
        before = sorted(gateway.workers)
        for number in range(ASKED):
            # Another model's name in each adds to the figures.
            await gateway.chat(ALICE, model=f"nobody-{number}-{'x' * 100}")
            answer = await gateway.chat(ALICE)
            must(answer.status_code == 200, f"answered with {answer.status_code}")
        must(sorted(gateway.workers) == before, "a worker died")
        signals = [line for line in gateway.lines if "SIGBUS" in line or "signal 7" in line]
        must(not signals, f"the log says {signals[:1]}")
    return f"{2 * ASKED} of {2 * ASKED} answered, the workers are those from the start"


async def _run(*command: str) -> int:
    process = await asyncio.create_subprocess_exec(*command, stderr=DEVNULL)
    return await process.wait()
