"""The units of ``deploy/systemd``: what systemd says of them, and that their commands are commands here."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gateway.settings import Settings
from tests.conftest import installed
from tests.ports import free_port

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
NAMES = sorted(path.name for path in UNITS.glob("*.service"))


def value(unit: str, key: str) -> str:
    found = re.search(rf"^{key}=(.*)$", (UNITS / unit).read_text(), re.MULTILINE)
    assert found is not None, f"{unit} has no {key}"
    return found[1]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine's files, as far as the units name them: systemd looks whether their commands are there."""
    units = tmp_path / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    for name in NAMES:
        shutil.copy(UNITS / name, units / name)
    for path in (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system")):
        if path.is_dir():
            shutil.copytree(path, tmp_path / "usr" / "lib" / "systemd" / "system", symlinks=True)
            break
    programs = tmp_path / "opt" / "tollgate" / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("tollgate", "python"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    for folder in (
        tmp_path,
        *(path for path in tmp_path.rglob("*") if path.is_dir() and not path.is_symlink()),
    ):
        folder.chmod(0o755)  # systemd trusts no others
    return tmp_path


def test_there_are_units() -> None:
    assert NAMES == ["tollgate-engine.service", "tollgate.service"]


@pytest.mark.parametrize("name", NAMES)
def test_systemd_finds_nothing_wrong(root: Path, name: str) -> None:
    program = installed("systemd-analyze", "systemd")
    command = [program, "verify", "--man=no", "--recursive-errors=no", f"--root={root}", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "tollgate" in line]
    assert (done.returncode, said) == (0, []), done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_systemd_calls_them_well_guarded(root: Path, name: str) -> None:
    program = installed("systemd-analyze", "systemd")
    command = [program, "security", "--offline=true", f"--root={root}", "--threshold=50", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-400:] + done.stderr


def test_the_time_to_stop_is_the_gateways_own() -> None:
    settings = Settings()
    assert float(value("tollgate.service", "TimeoutStopSec")) == (
        settings.shutdown_delay + settings.drain_timeout + 10
    )


@pytest.mark.anyio
async def test_the_command_serves_and_ends_in_time(tmp_path: Path) -> None:
    """By the unit's own words, with places of this test's in theirs."""
    policies, state, port = tmp_path / "policies", tmp_path / "state", free_port()
    policies.mkdir()
    (policies / "gateway.yaml").write_text(
        'version: 1\nbackends: {fake: {kind: fake, script: [{reply: "x"}]}}\n'
        "models: {m: {targets: [{backend: fake, model: m}]}}\n"
    )

    def here(command: str) -> list[str]:
        program = f"{sys.executable} -m gateway"
        for old, new in (
            ("/opt/tollgate/.venv/bin/tollgate", program),
            ("/etc/tollgate/policies", str(policies)),
            ("8000", str(port)),
        ):
            command = command.replace(old, new)
        return shlex.split(command)

    env = {"PATH": "/usr/bin:/bin", "TOLLGATE_STATE_DIR": str(state), "HOME": str(tmp_path)}
    checked = await asyncio.create_subprocess_exec(*here(value("tollgate.service", "ExecStartPre")), env=env)
    assert await checked.wait() == 0
    serving = await asyncio.create_subprocess_exec(
        *here(value("tollgate.service", "ExecStart")), env={**env, "TOLLGATE_SHUTDOWN_DELAY": "0"}
    )
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client, asyncio.timeout(300):
            while True:
                try:
                    if (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
        serving.send_signal(signal.SIGTERM)
        async with asyncio.timeout(300):
            assert await serving.wait() == 0
    finally:
        if serving.returncode is None:
            serving.kill()
            await serving.wait()
