"""What a launched engine finds in its environment: keys of providers, tokens of the operator."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from benchmarks.attacks.frame import Rig, must
from benchmarks.attacks.frame.gateway import descendants

POINT = "D.24"
TRIED = "reading the environment of every process that the gateway starts, with five secrets in its own"
HOLDS = "the launched engine has none of them"
SECRETS = {
    "OPENAI_API_KEY": "sk-secret-of-openai",
    "ANTHROPIC_API_KEY": "sk-ant-secret",
    "AWS_SECRET_ACCESS_KEY": "aws-secret-words",
    "DATABASE_URL": "postgres://u:secret-password@db/x",
    "TOLLGATE_METRICS_TOKEN": "secret-metrics-token",
}


async def attack(rig: Rig) -> str:
    gateway = await rig.gateway(rig.policy(backends={"engine": rig.demo_engine()}), **SECRETS)
    engines: list[int] = []
    async with asyncio.timeout(60):
        while not engines:
            await asyncio.sleep(0.2)
            engines = [pid for pid in descendants(gateway.pid) if b"\0engine\0" in _read(pid, "cmdline")]
    found = [
        f"{name} ({_read(pid, 'cmdline').split(chr(0).encode())[2].decode()})"
        for pid in engines
        for name, secret in SECRETS.items()
        if secret.encode() in _read(pid, "environ")
    ]
    must(not found, f"it has {', '.join(found)}")
    worker = _read(gateway.workers[0], "environ")
    must(
        SECRETS["OPENAI_API_KEY"].encode() in worker,
        "not even the gateway's worker has them: nothing was tried",
    )
    return f"none of {len(SECRETS)} in {len(engines)} processes of the engine"


def _read(pid: int, what: str) -> bytes:
    with suppress(OSError):
        return Path("/proc", str(pid), what).read_bytes()
    return b""
