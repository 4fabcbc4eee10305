"""The gateway as Compose runs it: another user, a policy folder that it may not write. Keys are made and revoked."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

from benchmarks.attacks.busy_policy_folder import until
from benchmarks.attacks.frame import MALLORY, Gateway, Rig, must, skip
from benchmarks.attacks.frame.gateway import ROOT

POINT = "D.26"
TRIED = "keys made and revoked inside (uid 10001, policies mounted read-only) and outside; an unreadable keys.yaml"
HOLDS = "each does what it says to every caller; keys that nobody can read are refused"
UID = 10001
SETPRIV = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]


async def attack(rig: Rig) -> str:
    if os.geteuid() != 0 or not all(map(shutil.which, ("setpriv", "unshare", "nsenter"))):
        skip("needs root, to become another user and to mount")
    gateway = await _contained(rig)
    inside = ["nsenter", f"--mount=/proc/{gateway.pid}/ns/mnt", *SETPRIV]
    key = await _keys(gateway, "create", "--id", "made-inside", prefix=inside)
    await until(gateway, key, 200)
    await _keys(gateway, "revoke", "made-inside", prefix=inside)
    must((await gateway.chat(key)).status_code == 401, "the CLI said that it was revoked, and it got 200")
    await _keys(gateway, "revoke", "mallory-1", prefix=inside)
    must(
        (await gateway.chat(MALLORY)).status_code == 401,
        "a key of the read-only folder outlived its revocation",
    )

    host: dict[str, Any] = {"TOLLGATE_STATE_DIR": ""}
    key = await _keys(gateway, "create", "--id", "made-outside", **host)
    await until(gateway, key, 200)
    (gateway.policies / "keys.yaml").chmod(0o600)
    unread = await until(gateway, key, 503)
    for _ in range(50):  # told once it is no passing thing
        if any("Permission denied" in line for line in gateway.lines):
            break
        await asyncio.sleep(0.1)
    must(any("Permission denied" in line for line in gateway.lines), "the log does not say why")
    (gateway.policies / "keys.yaml").chmod(0o644)
    await until(gateway, key, 200)
    await _keys(gateway, "revoke", "made-outside", **host)
    await until(gateway, key, 401)
    return f"as the CLI said on both sides, inside at once; unreadable: 503 after {unread:.1f} s, and the log says why"


async def _contained(rig: Rig) -> Gateway:
    """As uid 10001 in a mount namespace where the policy folder is read-only."""
    gateway = await rig.gateway(rig.policy())
    await gateway.stop()
    gateway.lines.clear()
    for path in (rig.folder, gateway.folder, gateway.policies):
        path.chmod(0o755)
    for path in (gateway.state, *gateway.state.rglob("*")):
        os.chown(path, UID, UID)
    here = gateway.policies
    mounts = [*_python(rig.folder), f"mount --bind {here} {here}", f"mount -o remount,ro,bind {here}"]
    script = " && ".join([*mounts, 'exec "$@"'])
    await gateway.start(wrapped=["unshare", "--mount", "sh", "-c", script, "sh", *SETPRIV])
    (worker,) = gateway.workers
    must(os.stat(f"/proc/{worker}").st_uid == UID, "the worker runs as somebody else")
    return gateway


def _python(scratch: Path) -> list[str]:
    """What lets others reach this Python, should it lie in a home folder."""
    base = Path(sys.base_prefix)
    closed = next((path for path in reversed(base.parents) if not path.stat().st_mode & 0o001), None)
    if closed is None:
        return []
    aside = scratch / "python"
    aside.mkdir()
    return [
        f"mount --bind {base} {aside}",
        f"mount -t tmpfs -o mode=755 tmpfs {closed}",
        f"mkdir -p {base}",
        f"mount --bind {aside} {base}",
    ]


async def _keys(gateway: Gateway, *arguments: str, prefix: list[str] | None = None, **env: str) -> str:
    """What ``tollgate keys`` prints on standard output."""
    command = [*(prefix or []), sys.executable, "-m", "gateway", "keys", arguments[0]]
    process = await asyncio.create_subprocess_exec(
        *(*command, "--policies", str(gateway.policies), *arguments[1:]),
        cwd=ROOT,
        env={**os.environ, "TOLLGATE_STATE_DIR": str(gateway.state), **env},
        stdout=PIPE,
        stderr=PIPE,
    )
    out, err = await process.communicate()
    must(process.returncode == 0, f"'keys {arguments[0]}' failed: {err.decode().strip()}")
    return out.decode().strip()
